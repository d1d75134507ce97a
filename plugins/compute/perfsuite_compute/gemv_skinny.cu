// One row times the rows of a weight matrix, as in decoding: y[i] = sum over j of x[j] w[i, j].
//
// N and K come from the builder; K is a multiple of 8, so that each row of w starts at a multiple
// of 16 bytes. A warp takes a row: 16 bytes a lane and load, up to LOADS of them in flight. Those
// of 32 warps a multiprocessor are several times what HBM's latency (about 1 us under load) times
// an SM's share of the bandwidth asks for. x is read again by each warp, from the L1 cache.

#include <ptx.cuh>

constexpr int WARPS = 8;
constexpr int LOADS = 8;
// Of a multiprocessor: 4096 rows then take one turn. Also tells the compiler that it has 64 registers;
// left to itself it took 42, and one load after the other.
constexpr int BLOCKS = 4;
constexpr int VECTORS = K / 8;  // of 16 bytes in a row
constexpr int STEP = LOADS * 32;
constexpr int WHOLE = VECTORS / STEP * STEP;
static_assert(K % 8 == 0, "a row of w must be whole vectors");

__device__ __forceinline__ float2 widen(unsigned int pair) {
    // A bf16 is the upper half of the float of the same value.
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ float dot(uint4 a, uint4 b, float sum) {
    const unsigned int x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 u = widen(x[i]), v = widen(y[i]);
        sum = fmaf(u.x, v.x, sum);
        sum = fmaf(u.y, v.y, sum);
    }
    return sum;
}

extern "C" __global__ __launch_bounds__(WARPS * 32, BLOCKS) void gemv_rows(
    const uint4* __restrict__ x, const uint4* __restrict__ w, unsigned short* __restrict__ y) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= N) return;
    const uint4* __restrict__ weights = w + static_cast<long long>(row) * VECTORS;
    float sums[2] = {};
#pragma unroll 1
    for (int start = lane; start < WHOLE; start += STEP) {
        uint4 taken[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) taken[i] = __ldcs(weights + start + i * 32);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            sums[i % 2] = dot(taken[i], __ldg(x + start + i * 32), sums[i % 2]);
        }
    }
#pragma unroll 1
    for (int at = WHOLE + lane; at < VECTORS; at += 32) {
        sums[0] = dot(__ldcs(weights + at), __ldg(x + at), sums[0]);
    }
    float sum = sums[0] + sums[1];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    if (lane == 0) y[row] = narrow(sum);
}
