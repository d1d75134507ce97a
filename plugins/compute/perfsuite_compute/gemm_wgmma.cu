// c = a b in bf16 with fp32 sums, all row-major: the ladder's last rung by hand. Tiles of 128 x 256
// in a ring of slots in shared memory, filled by TMA, which one thread of a third warpgroup starts,
// and multiplied by two warpgroups of 64 x 256 with wgmma m64n256k16. a is m x k, b is k x n; n and
// k are multiples of 8, as TMA asks of rows. A block takes every gridDim.x-th tile. PTX ISA 9.7:
// "mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix Instructions".

#include <ptx.cuh>

constexpr int TILE_M = 128;
constexpr int TILE_N = 256;
constexpr int STEP = 64;  // columns of a and rows of b in a slot
constexpr int SLOTS = 4;
constexpr int GROUP = 16;  // rows of tiles that walk the columns together: a square of c in L2
constexpr int WARPGROUP = 128;
constexpr int MULTIPLIERS = 2;
constexpr int THREADS = WARPGROUP * (MULTIPLIERS + 1);
// What TMA swizzles is 128 bytes wide: 64 columns. A slot has one such box of a, and four of b, each
// 64 columns of its 64 rows.
constexpr int BOX = 64;
constexpr int BYTES_A = TILE_M * BOX * 2;
constexpr int BYTES_BOX_B = STEP * BOX * 2;
constexpr int SLOT_BYTES = BYTES_A + TILE_N / BOX * BYTES_BOX_B;
// Matrix descriptors, in units of 16 bytes: the stride (from 32 bits on) leads over 8 rows of 128
// bytes; b runs along n, so its leading offset (from bit 16 on) leads to its next box. From bit 62
// on, 1: the swizzle of 128 bytes.
constexpr unsigned long long DESCRIPTOR_A = 1ull << 62 | 64ull << 32;
constexpr unsigned long long DESCRIPTOR_B = DESCRIPTOR_A | (BYTES_BOX_B / 16ull) << 16;

struct Ring : Place<SLOTS> {
    unsigned slots;  // addresses in shared memory: the slots, a barrier each that tells when its
    unsigned full;   // copies have come, and one when both warpgroups have read it
    unsigned empty;
};

struct Tile {
    int row;
    int column;
};

__device__ Tile tile_at(int index, int tiles_m, int tiles_n) {
    const int first = index / (GROUP * tiles_n) * GROUP;
    const int rows = min(tiles_m - first, GROUP);
    const int within = index % (GROUP * tiles_n);
    return {(first + within % rows) * TILE_M, within / rows * TILE_N};
}

// One thread copies ahead by as many slots as are empty. Beyond the edges TMA writes zeros, and
// counts them as bytes copied.
__device__ void copy_tile(const TensorMap& a, const TensorMap& b, Ring& ring, Tile tile, int steps)
{
    for (int step = 0; step < steps; ++step, ring.advance()) {
        const unsigned to = ring.slots + ring.slot * SLOT_BYTES, full = ring.full + ring.slot * 8;
        barrier_wait(ring.empty + ring.slot * 8, ring.parity ^ 1);
        barrier_expect(full, SLOT_BYTES);
        copy_box(a, to, full, step * STEP, tile.row);
        #pragma unroll
        for (int box = 0; box < TILE_N / BOX; ++box) {
            copy_box(b, to + BYTES_A + box * BYTES_BOX_B, full, tile.column + box * BOX,
                     step * STEP);
        }
    }
}

__device__ void release(const Ring& ring, unsigned slot) {
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty + slot * 8);
}

// A warpgroup's 64 x 256: one step's multiplications are under way while the next are issued.
__device__ void multiply_tile(float (&sums)[SUMS], Ring& ring, int warpgroup, int steps) {
    unsigned before = 0;  // the slot of the step before
    for (int step = 0; step < steps; ++step, ring.advance()) {
        const unsigned a = ring.slots + ring.slot * SLOT_BYTES + warpgroup * (64 * BOX * 2);
        const unsigned b = ring.slots + ring.slot * SLOT_BYTES + BYTES_A;
        barrier_wait(ring.full + ring.slot * 8, ring.parity);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            // The next 16 are 32 bytes on in the rows of a, and 16 rows of 128 bytes in b's boxes.
            multiply<1>(sums, DESCRIPTOR_A | ((a + k * 2) & 0x3FFFF) >> 4,
                        DESCRIPTOR_B | ((b + k * BOX * 2) & 0x3FFFF) >> 4, step > 0 || k > 0);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // Until those of the step before have ended.
        await_multiplications<1>();
        if (step > 0) release(ring, before);
        before = ring.slot;
    }
    await_multiplications<0>();
    release(ring, before);
    settle(sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
           unsigned short* c, long long size_m, long long size_n, long long size_k) {
    extern __shared__ unsigned char shared[];
    __shared__ alignas(8) unsigned long long full[SLOTS], empty[SLOTS];
    const int m = (int)size_m, n = (int)size_n, steps = ((int)size_k + STEP - 1) / STEP;
    const int tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
    // The swizzle repeats every 1024 bytes of address: slots start at a multiple of that.
    Ring ring = {{}, (shared_address(shared) + 1023) / 1024 * 1024, shared_address(full),
                 shared_address(empty)};
    // The same in all lanes of a warp, and the compiler is to know it: roles must not diverge.
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            barrier_init(ring.full + slot * 8, 1);
            barrier_init(ring.empty + slot * 8, MULTIPLIERS * WARPGROUP / 32);
        }
        barriers_ready();
    }
    __syncthreads();

    // 128 x 40 + 256 x 232 registers are what 384 x 168 are.
    if (warpgroup == MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == MULTIPLIERS * WARPGROUP) {
            for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
                copy_tile(a, b, ring, tile_at(index, tiles_m, tiles_n), steps);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");

    float sums[SUMS];
    for (int index = blockIdx.x; index < tiles_m * tiles_n; index += gridDim.x) {
        multiply_tile(sums, ring, warpgroup, steps);
        const Tile tile = tile_at(index, tiles_m, tiles_n);
        store(sums, c, tile.row + threadIdx.x / 32 * 16, tile.column, m, n);
    }
}
