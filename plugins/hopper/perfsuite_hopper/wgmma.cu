// c = a @ b^T in bf16 with fp32 sums: tiles of 128 x 256, copied by TMA into a ring of slots in
// shared memory, multiplied by two warpgroups of 64 x 256 with wgmma. a is m x k, b is n x k, c is
// m x n, row-major; k is a multiple of 8, n of 2. A block takes every gridDim.x-th tile.
// Macros: DESCRIPTOR, the matrix descriptor's constant fields; SPECIALIZED: 0 has every warpgroup
// multiply and one of its threads copy, in step; 1 has a third warpgroup do nothing but copy.

#include <ptx.cuh>

constexpr int TILE_M = 128;
constexpr int TILE_N = 256;
constexpr int STEP = 64;  // columns of a and b in a slot: 128 bytes, the widest swizzle
constexpr int SLOTS = 4;
constexpr int GROUP = 16;  // rows of tiles that walk the columns together: a square of c in L2
constexpr int BYTES_A = TILE_M * STEP * 2;
constexpr int SLOT_BYTES = BYTES_A + TILE_N * STEP * 2;
constexpr int WARPGROUP = 128;
constexpr int MULTIPLIERS = 2;
constexpr int THREADS = WARPGROUP * (MULTIPLIERS + SPECIALIZED);
static_assert(TILE_N == 2 * SUMS && TILE_M == 64 * MULTIPLIERS, "an instruction is a warpgroup's");

__device__ unsigned long long descriptor(unsigned address) {
    return DESCRIPTOR | ((address & 0x3FFFF) >> 4);
}

// One slot: 64 rows of a from `a` on, 256 of b. Within the swizzled 128 bytes of a row, the next 16
// columns start 32 bytes on.
__device__ void multiply_slot(float (&sums)[SUMS], unsigned a, unsigned b, bool first) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int column = 0; column < STEP; column += 16) {
        multiply<0>(sums, descriptor(a + column * 2), descriptor(b + column * 2), !first || column > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// What a thread knows of its block's work: the ring and its barriers (addresses in shared memory).
struct Job {
    const TensorMap* map_a;
    const TensorMap* map_b;
    unsigned slots;
    unsigned full;
    unsigned empty;
    int m;
    int n;
    int steps;
    int tiles_m;
    int tiles_n;
};

struct Tile {
    int row;
    int column;
};

__device__ Tile tile_at(const Job& job, int index) {
    const int first = index / (GROUP * job.tiles_n) * GROUP;
    const int rows = min(job.tiles_m - first, GROUP);
    const int within = index % (GROUP * job.tiles_n);
    return {(first + within % rows) * TILE_M, within / rows * TILE_N};
}

// Beyond the edges TMA writes zeros, and counts them as bytes copied.
__device__ void fill(const Job& job, unsigned slot, Tile tile, int step) {
    const unsigned to = job.slots + slot * SLOT_BYTES, barrier = job.full + slot * 8;
    barrier_expect(barrier, SLOT_BYTES);
    copy_box(*job.map_a, to, barrier, step * STEP, tile.row);
    copy_box(*job.map_b, to + BYTES_A, barrier, step * STEP, tile.column);
}

#if SPECIALIZED

// The copying role, one thread: runs ahead of the multiplications by as many slots as are empty,
// across tiles too.
__device__ void copy_tiles(const Job& job) {
    Place<SLOTS> place;
    for (int index = blockIdx.x; index < job.tiles_m * job.tiles_n; index += gridDim.x) {
        const Tile tile = tile_at(job, index);
        for (int step = 0; step < job.steps; ++step, place.advance()) {
            barrier_wait(job.empty + place.slot * 8, place.parity ^ 1);
            fill(job, place.slot, tile, step);
        }
    }
}

__device__ void release(const Job& job, unsigned slot) {
    if (threadIdx.x % 32 == 0) barrier_arrive(job.empty + slot * 8);
}

#endif

// The multiplying role: one group of multiplications is under way while the next is issued.
__device__ void multiply_tile(const Job& job, Tile tile, Place<SLOTS>& place, int warpgroup,
                              float (&sums)[SUMS]) {
    unsigned before = 0;  // the slot of the step before
    for (int step = 0; step < job.steps; ++step, place.advance()) {
        const unsigned from = job.slots + place.slot * SLOT_BYTES;
        barrier_wait(job.full + place.slot * 8, place.parity);
        multiply_slot(sums, from + warpgroup * (BYTES_A / MULTIPLIERS), from + BYTES_A, step == 0);
        await_multiplications<1>();  // those of the step before have ended
#if SPECIALIZED
        if (step > 0) release(job, before);
#else
        if (step > 0 && step - 1 + SLOTS < job.steps) {
            __syncthreads();  // in both warpgroups
            if (threadIdx.x == 0) fill(job, before, tile, step - 1 + SLOTS);
            __syncwarp();
        }
#endif
        before = place.slot;
    }
    await_multiplications<0>();
    settle(sums);
#if SPECIALIZED
    release(job, before);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
           unsigned short* c, long long size_m, long long size_n, long long size_k) {
    extern __shared__ unsigned char shared[];
    __shared__ alignas(8) unsigned long long full[SLOTS], empty[SLOTS];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const Job job = {
        &map_a, &map_b,
        // The swizzle repeats every 1024 bytes of address: slots start at a multiple of that.
        (shared_address(shared) + 1023) / 1024 * 1024, shared_address(full), shared_address(empty),
        m, n, (k + STEP - 1) / STEP, (m + TILE_M - 1) / TILE_M, (n + TILE_N - 1) / TILE_N};
    // The same in all lanes of a warp, and the compiler is to know it: roles must not diverge.
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            barrier_init(job.full + slot * 8, 1);
            barrier_init(job.empty + slot * 8, MULTIPLIERS * WARPGROUP / 32);
        }
        barriers_ready();
    }
    __syncthreads();

#if SPECIALIZED
    // 128 x 40 + 256 x 232 registers are what 384 x 168 are.
    if (warpgroup == MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == MULTIPLIERS * WARPGROUP) copy_tiles(job);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif

    float sums[SUMS];
    Place<SLOTS> place;
    for (int index = blockIdx.x; index < job.tiles_m * job.tiles_n; index += gridDim.x) {
        const Tile tile = tile_at(job, index);
#if !SPECIALIZED
        __syncthreads();  // the tile before has been read
        if (threadIdx.x == 0) {
            Place<SLOTS> ahead = place;
            for (int step = 0; step < min(SLOTS, job.steps); ++step, ahead.advance()) {
                fill(job, ahead.slot, tile, step);
            }
        }
        __syncwarp();
#endif
        multiply_tile(job, tile, place, warpgroup, sums);
        const int warp = threadIdx.x % (WARPGROUP * MULTIPLIERS) / 32;
        store(sums, c, tile.row + warp * 16, tile.column, m, n);
    }
}
