// c = a @ b^T in bf16 with fp32 sums, as it is written for Ampere: tiles of 128 x 128 that cp.async
// brings into a ring of slots in shared memory, four warps of 64 x 64 that load fragments with
// ldmatrix and multiply them with mma.sync. a is m x k, b is n x k, c is m x n, row-major; k is a
// multiple of 8, n of 2. One block a tile, two blocks an SM.

#include <ptx.cuh>

constexpr int TILE = 128;
constexpr int STEP = 64;  // columns of a and b in a slot
constexpr int SLOTS = 3;
constexpr int GROUP = 16;  // rows of tiles that walk the columns together: a square of c in L2
constexpr int THREADS = 128;
constexpr int CHUNKS = STEP / 8;  // of 16 bytes in a row
constexpr int HALF_BYTES = TILE * STEP * 2;
constexpr int SLOT_BYTES = 2 * HALF_BYTES;  // a, then b
constexpr int LOADS = TILE * CHUNKS / THREADS;
constexpr int DOWN = 4;    // fragments of 16 rows in a warp's 64
constexpr int ACROSS = 8;  // fragments of 8 columns

// Chunks are permuted by their row, so that eight rows of a column lie in different banks.
__device__ unsigned chunk_at(unsigned base, int row, int chunk) {
    return base + row * STEP * 2 + (chunk ^ row % 8) * 16;
}

// 128 rows of `from`, from `row` on; zeros where the matrix ends.
__device__ void load_half(unsigned base, const unsigned short* from, int row, int rows, int column,
                          int columns) {
    #pragma unroll 4  // all eight at once take registers that spill
    for (int i = 0; i < LOADS; ++i) {
        const int at = threadIdx.x + i * THREADS;
        const int y = at / CHUNKS, x = at % CHUNKS;
        const bool inside = row + y < rows && column + x * 8 < columns;
        const unsigned short* source =
            inside ? from + (long long)(row + y) * columns + column + x * 8 : from;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(chunk_at(base, y, x)),
                     "l"(source), "r"(inside ? 16 : 0)
                     : "memory");
    }
}

// One slot: 64 rows of a from `row` on by 64 of b from `column` on.
__device__ void multiply_slot(float (&sums)[DOWN][ACROSS][4], unsigned slot, int row, int column) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        unsigned a[DOWN][4], b[ACROSS / 2][4];
        #pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            load_fragments(a[i], chunk_at(slot, row + i * 16 + lane % 16, chunk + lane / 16));
        }
        #pragma unroll
        for (int i = 0; i < ACROSS / 2; ++i) {
            const int y = column + i * 16 + lane / 16 * 8 + lane % 8;
            load_fragments(b[i], chunk_at(slot + HALF_BYTES, y, chunk + lane / 8 % 2));
        }
        #pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            #pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
                multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_mma_sync(const unsigned short* a, const unsigned short* b, unsigned short* c,
              long long size_m, long long size_n, long long size_k) {
    extern __shared__ uint4 shared[];
    const unsigned slots = ((unsigned)__cvta_generic_to_shared(shared) + 127) / 128 * 128;
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int tiles_m = (m + TILE - 1) / TILE;
    const int tiles_n = (n + TILE - 1) / TILE;
    const int steps = (k + STEP - 1) / STEP;
    const int first = blockIdx.x / (GROUP * tiles_n) * GROUP;
    const int rows = min(tiles_m - first, GROUP);
    const int row = (first + blockIdx.x % (GROUP * tiles_n) % rows) * TILE;
    const int column = blockIdx.x % (GROUP * tiles_n) / rows * TILE;
    const int warp_row = threadIdx.x / 64 * 64, warp_column = threadIdx.x / 32 % 2 * 64;

    auto fill = [&](int step) {
        if (step < steps) {
            const unsigned slot = slots + step % SLOTS * SLOT_BYTES;
            load_half(slot, a, row, m, step * STEP, k);
            load_half(slot + HALF_BYTES, b, column, n, step * STEP, k);
        }
        close_group();  // an empty one keeps the count
    };

    float sums[DOWN][ACROSS][4] = {};
    for (int step = 0; step < SLOTS - 1; ++step) fill(step);
    for (int step = 0; step < steps; ++step) {
        wait_groups<SLOTS - 2>();
        __syncthreads();  // this step's slot is filled, and the one before was read by all
        fill(step + SLOTS - 1);
        multiply_slot(sums, slots + step % SLOTS * SLOT_BYTES, warp_row, warp_column);
    }
    store(sums, c, row + warp_row, column + warp_column, m, n);
}
