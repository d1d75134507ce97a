// c = a b in bf16 with fp32 sums, all row-major: the ladder's last rung by hand. Tiles of 128 x 256
// in a ring of slots in shared memory, filled by TMA, which one thread of a third warpgroup starts,
// and multiplied by two warpgroups of 64 x 256 with wgmma m64n256k16. a is m x k, b is k x n; n and
// k are multiples of 8, as TMA asks of rows. A block takes every gridDim.x-th tile. PTX ISA 9.7:
// "mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix Instructions".

constexpr int TILE_M = 128;
constexpr int TILE_N = 256;
constexpr int STEP = 64;  // columns of a and rows of b in a slot
constexpr int SLOTS = 4;
constexpr int GROUP = 16;  // rows of tiles that walk the columns together: a square of c in L2
constexpr int WARPGROUP = 128;
constexpr int MULTIPLIERS = 2;
constexpr int THREADS = WARPGROUP * (MULTIPLIERS + 1);
constexpr int SUMS = TILE_M * TILE_N / (WARPGROUP * MULTIPLIERS);
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

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

__device__ unsigned shared_address(const void* pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ void barrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ void barrier_arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Wait for the end of the phase with this parity: 0, 1, 0, ... The one before the first, of parity
// 1, counts as ended.
__device__ void barrier_wait(unsigned barrier, unsigned parity)
{
    unsigned done;
    do {
        asm volatile("{\n"
                     ".reg .pred ended;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, ended;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

__device__ void copy_box(const TensorMap& map, unsigned to, unsigned barrier, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)

// sums = a b, plus sums if `add`: 64 x 16 times 16 x 256; the last 1 says that b runs along n.
__device__ void multiply(float (&sums)[SUMS], unsigned a, unsigned b, int add)
{
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
        "%125, %126, %127}, %128, %129, add, 1, 1, 0, 1;\n"
        "}"
        : SIXTY_FOUR(0), SIXTY_FOUR(64)
        : "l"(DESCRIPTOR_A | (a & 0x3FFFF) >> 4), "l"(DESCRIPTOR_B | (b & 0x3FFFF) >> 4), "r"(add));
}

struct Ring {
    unsigned slots;  // addresses in shared memory: the slots, a barrier each that tells when its
    unsigned full;   // copies have come, and one when both warpgroups have read it
    unsigned empty;
    unsigned slot;
    unsigned parity;

    __device__ void advance()
    {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

struct Tile {
    int row;
    int column;
};

__device__ Tile tile_at(int index, int tiles_m, int tiles_n)
{
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
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full),
                     "r"(SLOT_BYTES)
                     : "memory");
        copy_box(a, to, full, step * STEP, tile.row);
        #pragma unroll
        for (int box = 0; box < TILE_N / BOX; ++box) {
            copy_box(b, to + BYTES_A + box * BYTES_BOX_B, full, tile.column + box * BOX,
                     step * STEP);
        }
    }
}

__device__ void release(const Ring& ring, unsigned slot)
{
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(ring.empty + slot * 8);
    }
}

// A warpgroup's 64 x 256: one step's multiplications are under way while the next are issued.
__device__ void multiply_tile(float (&sums)[SUMS], Ring& ring, int warpgroup, int steps)
{
    unsigned before = 0;  // the slot of the step before
    for (int step = 0; step < steps; ++step, ring.advance()) {
        const unsigned a = ring.slots + ring.slot * SLOT_BYTES + warpgroup * (64 * BOX * 2);
        const unsigned b = ring.slots + ring.slot * SLOT_BYTES + BYTES_A;
        barrier_wait(ring.full + ring.slot * 8, ring.parity);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            // The next 16 are 32 bytes on in the rows of a, and 16 rows of 128 bytes in b's boxes.
            multiply(sums, a + k * 2, b + k * BOX * 2, step > 0 || k > 0);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // Until those of the step before have ended.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (step > 0) {
            release(ring, before);
        }
        before = ring.slot;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    release(ring, before);
    // The compiler does not know that sums were being written until now: nothing that reads them may
    // move further up.
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}

__device__ void store_pair(unsigned short* c, float low, float high)
{
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    *reinterpret_cast<unsigned*>(c) = pair;
}

// A warp has 16 rows; four lanes have row lane / 4, and that plus 8.
__device__ void store(const float (&sums)[SUMS], unsigned short* c, Tile tile, int m, int n)
{
    const int lane = threadIdx.x % 32;
    const int row = tile.row + threadIdx.x / 32 * 16 + lane / 4;
    #pragma unroll
    for (int i = 0; i < SUMS / 4; ++i) {
        const int column = tile.column + i * 8 + lane % 4 * 2;
        unsigned short* to = c + (long long)row * n + column;
        if (column < n && row < m) {
            store_pair(to, sums[4 * i], sums[4 * i + 1]);
        }
        if (column < n && row + 8 < m) {
            store_pair(to + 8LL * n, sums[4 * i + 2], sums[4 * i + 3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
           unsigned short* c, long long size_m, long long size_n, long long size_k)
{
    extern __shared__ unsigned char shared[];
    __shared__ alignas(8) unsigned long long full[SLOTS], empty[SLOTS];
    const int m = (int)size_m, n = (int)size_n, steps = ((int)size_k + STEP - 1) / STEP;
    const int tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
    // The swizzle repeats every 1024 bytes of address: slots start at a multiple of that.
    Ring ring = {(shared_address(shared) + 1023) / 1024 * 1024, shared_address(full),
                 shared_address(empty), 0, 0};
    // The same in all lanes of a warp, and the compiler is to know it: roles must not diverge.
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            barrier_init(ring.full + slot * 8, 1);
            barrier_init(ring.empty + slot * 8, MULTIPLIERS * WARPGROUP / 32);
        }
        // Bulk copies see barriers through the async proxy.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
        store(sums, c, tile_at(index, tiles_m, tiles_n), m, n);
    }
}
