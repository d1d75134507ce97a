// out[row][c] = sum over k < TAPS of k + 1 times in[row][(c + k) % ROW]: each row goes through
// shared memory, as each of its floats is used by TAPS results. Blocks stride over the rows.
// Macro: STAGES, the rows that a block has room for (1 where nothing is asynchronous).

#include <ptx.cuh>

constexpr int THREADS = 256;
constexpr int ROW = THREADS * 4;  // four floats a thread
constexpr int TAPS = 13;          // four results need 16 floats, four vectors

// Four neighbouring results of a row that lies in shared memory.
__device__ __forceinline__ float4 filter(const float4* row) {
    float x[16];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
        const float4 four = row[(threadIdx.x + v) % THREADS];
        x[4 * v] = four.x, x[4 * v + 1] = four.y, x[4 * v + 2] = four.z, x[4 * v + 3] = four.w;
    }
    float sum[4] = {};
#pragma unroll
    for (int k = 0; k < TAPS; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += static_cast<float>(k + 1) * x[i + k];
    }
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

// What one writes first: load, wait, compute, wait, load the next.
extern "C" __global__ __launch_bounds__(THREADS) void filter_sync(
    const float4* __restrict__ in, float4* __restrict__ out, long long rows) {
    __shared__ float4 row[THREADS];
    for (long long at = blockIdx.x; at < rows; at += gridDim.x) {
        row[threadIdx.x] = in[at * THREADS + threadIdx.x];
        __syncthreads();
        out[at * THREADS + threadIdx.x] = filter(row);
        __syncthreads();  // the next row overwrites this one
    }
}

__device__ __forceinline__ void copy_async(float4* to, const float4* from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// STAGES rows in a ring. While one is computed, STAGES - 1 are on their way, without a register:
// with one stage nothing is, and only the detour through registers is saved.
extern "C" __global__ __launch_bounds__(THREADS) void filter_async(
    const float4* __restrict__ in, float4* __restrict__ out, long long rows) {
    __shared__ float4 ring[STAGES][THREADS];
    const long long step = gridDim.x;
    long long wanted = blockIdx.x;  // the next row to ask for
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (wanted < rows) copy_async(&ring[stage][threadIdx.x], in + wanted * THREADS + threadIdx.x);
        close_group();
        wanted += step;
    }
    int filled = STAGES - 1, now = 0;  // stages: where the next row goes, which one is computed
    for (long long at = blockIdx.x; at < rows; at += step) {
        // The barrier at the end of the last round has made room here.
        if (wanted < rows) {
            copy_async(&ring[filled][threadIdx.x], in + wanted * THREADS + threadIdx.x);
        }
        close_group();
        wanted += step;
        wait_groups<STAGES - 1>();
        __syncthreads();  // every thread's part of the row has arrived
        out[at * THREADS + threadIdx.x] = filter(ring[now]);
        __syncthreads();  // all are done with it: the next round may overwrite it
        filled = now;
        now = now + 1 == STAGES ? 0 : now + 1;
    }
}
