// out = a b for square matrices of n x n floats, n arbitrary, in three steps of reuse. Macro:
// VECTORS, whether rows may be read 16 bytes at a time (n is a multiple of 4).

#include <ptx.cuh>

constexpr int SIDE = 32;

// What one writes first: each thread reads a row and a column; lanes share the row, L1 the columns.
extern "C" __global__ __launch_bounds__(SIDE* SIDE) void matmul_naive(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
    long long n) {
    const long long row = static_cast<long long>(blockIdx.y) * SIDE + threadIdx.y;
    const long long column = static_cast<long long>(blockIdx.x) * SIDE + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0.0f;
    for (long long k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    out[row * n + column] = sum;
}

// Tiles of 32 x 32 in shared memory: each float is read from global memory n / 32 times.
extern "C" __global__ __launch_bounds__(SIDE* SIDE) void matmul_shared(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
    long long n) {
    __shared__ float left[SIDE][SIDE], right[SIDE][SIDE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long row = static_cast<long long>(blockIdx.y) * SIDE + y;
    const long long column = static_cast<long long>(blockIdx.x) * SIDE + x;
    float sum = 0.0f;
    for (long long k = 0; k < n; k += SIDE) {
        left[y][x] = row < n && k + x < n ? a[row * n + k + x] : 0.0f;
        right[y][x] = k + y < n && column < n ? b[(k + y) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SIDE; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < n && column < n) out[row * n + column] = sum;
}

// ROWS x COLUMNS of the result per block, 8 x 16 per thread: each float that a thread reads from
// shared memory serves it 16 or 8 times. What is no product takes a product's turn, so both ways
// there are short: cp.async brings tiles from global memory without a register, two steps ahead
// of the products, and a thread reads the next k's rows and columns while it multiplies this
// one's, across the step's one barrier too. Indices have 32 bits: n below 46,341.
constexpr int ROWS = 128, COLUMNS = 128;
constexpr int DOWN = 8, ACROSS = 16;
constexpr int DEPTH = 8;
constexpr int STAGES = 3;
constexpr int THREADS = ROWS / DOWN * (COLUMNS / ACROSS);
constexpr int BLOCKS = 256 / THREADS;  // per SM: 255 registers a thread
constexpr int PITCH = ROWS + 4;        // a warp writes 8 steps of k, so 8 times 4 rows, apart
// A thread's rows and columns are groups of 4 next to each other, this far from group to group.
constexpr int ROWS_APART = ROWS / (DOWN / 4), COLUMNS_APART = COLUMNS / (ACROSS / 4);

struct Tiles {
    float a[DEPTH][PITCH];  // turned: a[k][row]
    float b[DEPTH][COLUMNS];
};

// Zeros where `inside` does not hold: then `from` is not read.
template <int FLOATS>
__device__ __forceinline__ void copy_async(float* to, const float* from, bool inside) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = inside ? 4 * FLOATS : 0;
    if constexpr (FLOATS == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                     "r"(bytes)
                     : "memory");
    }
}

// Unsigned: an address is then one multiplication, not four instructions.
__device__ __forceinline__ unsigned index(int row, int column, int n) {
    return static_cast<unsigned>(row) * n + column;
}

// Rows of a and columns of b beyond the edge are copies of the last: their sums are not written.
// Beyond k lie zeros, since these would count.
__device__ __forceinline__ void fetch(Tiles& tiles, const float* a, const float* b, int k, int n) {
    const int t = threadIdx.x;
    const int top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS;
#pragma unroll
    for (int i = 0; i < DEPTH * ROWS; i += THREADS) {
        const int y = t / DEPTH + i / DEPTH, x = t % DEPTH;
        copy_async<1>(&tiles.a[x][y], a + index(min(top + y, n - 1), k + x, n), k + x < n);
    }
    constexpr int FLOATS = VECTORS ? 4 : 1, WIDTH = COLUMNS / FLOATS;
    static_assert(THREADS % DEPTH == 0 && THREADS % WIDTH == 0, "a thread stays in its column");
#pragma unroll
    for (int i = 0; i < DEPTH * WIDTH; i += THREADS) {
        const int y = t / WIDTH + i / WIDTH, x = t % WIDTH * FLOATS;
        copy_async<FLOATS>(&tiles.b[y][x], b + index(k + y, min(left + x, n - FLOATS), n),
                           k + y < n);
    }
}

struct Fragment {
    float rows[DOWN], columns[ACROSS];
};

template <int FLOATS, int APART>
__device__ __forceinline__ void pick(float (&to)[FLOATS], const float* from) {
#pragma unroll
    for (int i = 0; i < FLOATS; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + i / 4 * APART);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

__device__ __forceinline__ void read(Fragment& to, const Tiles& tiles, int k, int y, int x) {
    pick<DOWN, ROWS_APART>(to.rows, &tiles.a[k][y]);
    pick<ACROSS, COLUMNS_APART>(to.columns, &tiles.b[k][x]);
}

__device__ __forceinline__ void multiply(float (&sum)[DOWN][ACROSS], const Fragment& by) {
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) sum[i][j] += by.rows[i] * by.columns[j];
    }
}

__device__ __forceinline__ void write_four(const float* sum, float* __restrict__ out,
                                           int row, int column, int n) {
    if (row >= n) return;
    if constexpr (VECTORS) {
        if (column >= n) return;
        *reinterpret_cast<float4*>(out + index(row, column, n)) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j < n) out[index(row, column + j, n)] = sum[j];
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void matmul_registers(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
    long long size) {
    __shared__ __align__(16) Tiles tiles[STAGES];
    const int n = static_cast<int>(size);
    // A warp has 4 x 8 threads, in an order in which reads of 16 bytes take two turns, not four:
    // of every 16 lanes, those that differ in the first bit share columns, in the second bit rows.
    constexpr int WARPS_ACROSS = COLUMNS / ACROSS / 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = (warp / WARPS_ACROSS * 4 + lane / 16 * 2 + lane % 2) * 4;
    const int x = (warp % WARPS_ACROSS * 8 + lane / 2 % 8) * 4;
    float sum[DOWN][ACROSS] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch(tiles[stage], a, b, stage * DEPTH, n);
        close_group();
    }
    wait_groups<STAGES - 2>();
    __syncthreads();
    Fragment fragments[2];
    read(fragments[0], tiles[0], 0, y, x);
    int now = 0, left = STAGES - 1;  // the stages that are read and that nobody reads any more
    for (int k = 0; k < n; k += DEPTH) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            if (i == DEPTH - 1) {
                wait_groups<STAGES - 2>();
                __syncthreads();
                left = now;
                now = now + 1 == STAGES ? 0 : now + 1;
            }
            read(fragments[(i + 1) % 2], tiles[now], (i + 1) % DEPTH, y, x);
            if (i == 0) {
                fetch(tiles[left], a, b, k + (STAGES - 1) * DEPTH, n);
                close_group();
            }
            multiply(sum, fragments[i % 2]);
        }
    }
    wait_groups<0>();  // the last steps' zeros, before the block gives its shared memory back
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
        const int row = blockIdx.y * ROWS + y + i % 4 + i / 4 * ROWS_APART;
#pragma unroll
        for (int j = 0; j < ACROSS; j += 4) {
            const int column = blockIdx.x * COLUMNS + x + j / 4 * COLUMNS_APART;
            write_four(&sum[i][j], out, row, column, n);
        }
    }
}
