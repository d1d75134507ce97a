// out = a b for square matrices of n x n floats, n arbitrary, in three steps of reuse. Macro:
// VECTORS, whether rows may be read 16 bytes at a time (n is a multiple of 4).

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

// 128 x 128 of the result per block, 8 x 8 per thread: of what it reads from shared memory each
// thread uses every float eight times. A thread's rows are 4 next to each other and 4 more 64
// further, and so are its columns, so that reads of 16 bytes meet no bank twice. The next step's
// tiles are read from global memory while this one is computed, into the other half of shared
// memory: one barrier a step. Indices have 32 bits: n below 46,341.
constexpr int BLOCK = 128;
constexpr int DEPTH = 8;
constexpr int THREADS = 256;
constexpr int PITCH = BLOCK + 4;  // the two halves of a warp write 4 rows, so 16 banks, apart

struct Step {
    float a[4], b[4];
};

__device__ __forceinline__ void read_four(float (&to)[4], const float* __restrict__ from,
                                          int row, int column, int n) {
    if constexpr (VECTORS) {
        float4 v = {};
        if (row < n && column < n) v = *reinterpret_cast<const float4*>(from + row * n + column);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i] = row < n && column + i < n ? from[row * n + column + i] : 0.0f;
        }
    }
}

// Each thread takes 4 floats of a row of a (2 threads a row) and of b (32 threads a row).
__device__ __forceinline__ Step read_step(const float* a, const float* b, int k, int n) {
    const int t = threadIdx.x;
    const int top = blockIdx.y * BLOCK;
    const int left = blockIdx.x * BLOCK;
    Step step;
    read_four(step.a, a, top + t / 2, k + t % 2 * 4, n);
    read_four(step.b, b, k + t / 32, left + t % 32 * 4, n);
    return step;
}

struct Tiles {
    float a[DEPTH][PITCH];  // turned: a[k][row]
    float b[DEPTH][BLOCK];
};

__device__ __forceinline__ void keep(Tiles& tiles, const Step& step) {
    const int t = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) tiles.a[t % 2 * 4 + i][t / 2] = step.a[i];
    *reinterpret_cast<float4*>(&tiles.b[t / 32][t % 32 * 4]) =
        make_float4(step.b[0], step.b[1], step.b[2], step.b[3]);
}

// Four floats here and the four that lie 64 further.
__device__ __forceinline__ void pick(float (&to)[8], const float* from) {
    const float4 near = *reinterpret_cast<const float4*>(from);
    const float4 far = *reinterpret_cast<const float4*>(from + BLOCK / 2);
    to[0] = near.x, to[1] = near.y, to[2] = near.z, to[3] = near.w;
    to[4] = far.x, to[5] = far.y, to[6] = far.z, to[7] = far.w;
}

__device__ __forceinline__ void multiply(float (&sum)[8][8], const Tiles& tiles, int y, int x) {
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
        float rows[8], columns[8];
        pick(rows, &tiles.a[k][y]);
        pick(columns, &tiles.b[k][x]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] += rows[i] * columns[j];
        }
    }
}

__device__ __forceinline__ void write_four(const float* sum, float* __restrict__ out,
                                           int row, int column, int n) {
    if (row >= n) return;
    if constexpr (VECTORS) {
        if (column >= n) return;
        *reinterpret_cast<float4*>(out + row * n + column) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j < n) out[row * n + column + j] = sum[j];
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 2) void matmul_registers(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
    long long size) {
    __shared__ __align__(16) Tiles tiles[2];
    const int n = static_cast<int>(size);
    // A warp has 4 x 8 threads: 32 rows by 64 columns, in two halves each.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = (warp / 2 * 4 + lane / 8) * 4, x = (warp % 2 * 8 + lane % 8) * 4;
    float sum[8][8] = {};
    keep(tiles[0], read_step(a, b, 0, n));
    __syncthreads();
    int now = 0;
    for (int k = DEPTH; k < n; k += DEPTH) {
        const Step next = read_step(a, b, k, n);
        multiply(sum, tiles[now], y, x);
        now ^= 1;
        keep(tiles[now], next);
        __syncthreads();
    }
    multiply(sum, tiles[now], y, x);
    const int top = blockIdx.y * BLOCK + y;
    const int left = blockIdx.x * BLOCK + x;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = top + i % 4 + i / 4 * (BLOCK / 2);
        write_four(&sum[i][0], out, row, left, n);
        write_four(&sum[i][4], out, row, left + BLOCK / 2, n);
    }
}
