// Two fp32 matrix multiplications, c = a b, all row-major. The sizes are macros: SIZE_M, SIZE_N,
// SIZE_K and, for gemm_tiled, TILE (the side of the square of c that a block makes).

// What is written first: one thread for each element of c, operands straight from global memory.
// Neighbouring threads take neighbouring columns, so b and c are coalesced and a is broadcast.
extern "C" __global__ void gemm_naive(const float* a, const float* b, float* c) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= SIZE_M || column >= SIZE_N) return;
    float sum = 0.0f;
    for (int i = 0; i < SIZE_K; ++i) {
        sum += a[row * SIZE_K + i] * b[i * SIZE_N + column];
    }
    c[row * SIZE_N + column] = sum;
}

#ifdef TILE
constexpr int STEP = 16;           // columns of a and rows of b that are in shared memory at once
constexpr int SIDE = 16;           // a block has SIDE x SIDE threads
constexpr int OWN = TILE / SIDE;   // each thread makes OWN x OWN elements of c
constexpr int QUADS = OWN / 4;     // as QUADS x QUADS squares of 4 x 4
constexpr int LOADS = TILE * STEP / 4 / (SIDE * SIDE);
static_assert(SIZE_M % TILE == 0 && SIZE_N % TILE == 0 && SIZE_K % STEP == 0, "whole tiles only");

// A tile of a and of b in shared memory, OWN x OWN sums in registers: each value that is read from
// global memory serves TILE elements of c, and each read from shared memory OWN of them.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
gemm_tiled(const float* a, const float* b, float* c) {
    // a is turned on its way in, so that a thread reads both operands as vectors of four. The
    // padding leaves two threads to a bank when they store what they turned, not four.
    __shared__ float tile_a[2][STEP][TILE + 4];
    __shared__ float tile_b[2][STEP][TILE];
    const int thread = threadIdx.x;
    const int across = thread % SIDE;
    const int down = thread / SIDE;
    a += (long long)blockIdx.y * TILE * SIZE_K;
    b += blockIdx.x * TILE;
    float sums[OWN][OWN] = {};
    float4 next_a[LOADS];
    float4 next_b[LOADS];

    auto fetch = [&](int start) {
        #pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = thread + i * SIDE * SIDE;
            const int row_a = at / (STEP / 4), column_a = at % (STEP / 4) * 4;
            const int row_b = at / (TILE / 4), column_b = at % (TILE / 4) * 4;
            next_a[i] = *reinterpret_cast<const float4*>(&a[row_a * SIZE_K + start + column_a]);
            next_b[i] = *reinterpret_cast<const float4*>(&b[(start + row_b) * SIZE_N + column_b]);
        }
    };
    auto keep = [&](int stage) {
        #pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = thread + i * SIDE * SIDE;
            const int row_a = at / (STEP / 4), column_a = at % (STEP / 4) * 4;
            const int row_b = at / (TILE / 4), column_b = at % (TILE / 4) * 4;
            tile_a[stage][column_a + 0][row_a] = next_a[i].x;
            tile_a[stage][column_a + 1][row_a] = next_a[i].y;
            tile_a[stage][column_a + 2][row_a] = next_a[i].z;
            tile_a[stage][column_a + 3][row_a] = next_a[i].w;
            *reinterpret_cast<float4*>(&tile_b[stage][row_b][column_b]) = next_b[i];
        }
    };

    fetch(0);
    keep(0);
    __syncthreads();
    for (int start = 0, stage = 0; start < SIZE_K; start += STEP, stage ^= 1) {
        const bool more = start + STEP < SIZE_K;
        if (more) {
            fetch(start + STEP);  // under way during the multiplications below
        }
        #pragma unroll
        for (int i = 0; i < STEP; ++i) {
            float left[OWN], right[OWN];
            #pragma unroll
            for (int quad = 0; quad < QUADS; ++quad) {
                *reinterpret_cast<float4*>(&left[quad * 4]) =
                    *reinterpret_cast<const float4*>(&tile_a[stage][i][(quad * SIDE + down) * 4]);
                *reinterpret_cast<float4*>(&right[quad * 4]) =
                    *reinterpret_cast<const float4*>(&tile_b[stage][i][(quad * SIDE + across) * 4]);
            }
            #pragma unroll
            for (int y = 0; y < OWN; ++y) {
                #pragma unroll
                for (int x = 0; x < OWN; ++x) sums[y][x] += left[y] * right[x];
            }
        }
        if (more) {
            keep(stage ^ 1);
            __syncthreads();
        }
    }
    #pragma unroll
    for (int y = 0; y < OWN; ++y) {
        const int row = blockIdx.y * TILE + (y / 4 * SIDE + down) * 4 + y % 4;
        #pragma unroll
        for (int quad = 0; quad < QUADS; ++quad) {
            const int column = blockIdx.x * TILE + (quad * SIDE + across) * 4;
            *reinterpret_cast<float4*>(&c[row * SIZE_N + column]) =
                *reinterpret_cast<const float4*>(&sums[y][quad * 4]);
        }
    }
}
#endif
