// c = a b in bf16 with fp32 sums, all row-major: the rungs of the ladder on CUDA cores, from one
// thread an element to 64. a is m x k, b is k x n; n and k are multiples of 8, so that rows start at
// multiples of 16 bytes.

#include "gemm_rows.cuh"

__device__ float wide(bf16 value) {
    return __uint_as_float((unsigned)value << 16);
}

// What is written first. Neighbouring threads take neighbouring columns, so b is coalesced.
extern "C" __global__ void gemm_loop(const bf16* a, const bf16* b, bf16* c, long long size_m,
                                     long long size_n, long long size_k) {
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        sum += wide(a[(long long)row * k + i]) * wide(b[(long long)i * n + column]);
    }
    c[(long long)row * n + column] = (bf16)narrow(sum, 0.0f);
}

constexpr int SQUARE = 32;

// Tiles in shared memory: each value from global memory serves 32 elements of c.
extern "C" __global__ void __launch_bounds__(SQUARE * SQUARE) gemm_shared(
    const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n, long long size_k) {
    __shared__ float tile_a[SQUARE][SQUARE], tile_b[SQUARE][SQUARE];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * SQUARE + x, row = blockIdx.y * SQUARE + y;
    float sum = 0.0f;
    for (int start = 0; start < k; start += SQUARE) {
        const bool in_a = row < m && start + x < k, in_b = start + y < k && column < n;
        tile_a[y][x] = in_a ? wide(a[(long long)row * k + start + x]) : 0.0f;
        tile_b[y][x] = in_b ? wide(b[(long long)(start + y) * n + column]) : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < SQUARE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(long long)row * n + column] = (bf16)narrow(sum, 0.0f);
}

constexpr int TILE = 128;     // the square of c that a block of gemm_register makes
constexpr int THREADS = 256;
constexpr int SIDE = 16;      // gemm_register: SIDE x SIDE threads of OWN x OWN sums,
constexpr int OWN = 8;
constexpr int STEP = 16;      // and so many columns of a in shared memory
constexpr int HALF = TILE / 2;

// The eight values of `from`, the first in the low half of its first word.
__device__ void widen(float (&to)[8], uint4 from) {
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Sums in registers: each read from shared memory serves eight elements of c.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm_register(
    const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n, long long size_k) {
    // a is turned on its way in, so that a thread reads both operands as vectors of four.
    __shared__ float tile_a[STEP][TILE + 4], tile_b[STEP][TILE];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int row_a = threadIdx.x / 2, column_a = threadIdx.x % 2 * 8;
    const int row_b = threadIdx.x / 16, column_b = threadIdx.x % 16 * 8;
    const int across = threadIdx.x % SIDE * 4, down = threadIdx.x / SIDE * 4;
    float sums[OWN][OWN] = {};
    uint4 next_a = eight(a, row + row_a, m, column_a, k);
    uint4 next_b = eight(b, row_b, k, column + column_b, n);
    for (int start = 0; start < k; start += STEP) {
        float values[8];
        widen(values, next_a);
        #pragma unroll
        for (int i = 0; i < 8; ++i) tile_a[column_a + i][row_a] = values[i];
        widen(values, next_b);
        #pragma unroll
        for (int i = 0; i < 8; ++i) tile_b[row_b][column_b + i] = values[i];
        __syncthreads();
        next_a = eight(a, row + row_a, m, start + STEP + column_a, k);
        next_b = eight(b, start + STEP + row_b, k, column + column_b, n);
        #pragma unroll
        for (int i = 0; i < STEP; ++i) {
            float own_a[OWN], own_b[OWN];
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                *reinterpret_cast<float4*>(&own_a[half * 4]) =
                    *reinterpret_cast<const float4*>(&tile_a[i][half * HALF + down]);
                *reinterpret_cast<float4*>(&own_b[half * 4]) =
                    *reinterpret_cast<const float4*>(&tile_b[i][half * HALF + across]);
            }
            #pragma unroll
            for (int y = 0; y < OWN; ++y) {
                #pragma unroll
                for (int x = 0; x < OWN; ++x) sums[y][x] += own_a[y] * own_b[x];
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int y = 0; y < OWN; ++y) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int to_row = row + y / 4 * HALF + down + y % 4;
            const int to_column = column + half * HALF + across;
            if (to_row < m && to_column < n) {
                const float* from = &sums[y][half * 4];
                *reinterpret_cast<uint2*>(c + (long long)to_row * n + to_column) =
                    make_uint2(narrow(from[0], from[1]), narrow(from[2], from[3]));
            }
        }
    }
}
