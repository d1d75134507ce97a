// Softmax of each row of a row-major matrix, one block a row, the row kept in registers: one read,
// one write. Macros: COLS, THREADS, and BF16 for 2-byte elements (else fp32).

#ifdef BF16
typedef unsigned short Element;
#else
typedef float Element;
#endif

constexpr int LANES = 16 / sizeof(Element);  // elements in a 16-byte access
constexpr int HELD = (COLS / LANES + THREADS - 1) / THREADS;  // vectors a thread keeps
constexpr int WARPS = THREADS / 32;
constexpr float LOWEST = -1.0e38f;  // not -inf: the difference of two stays a number
constexpr float LOG2_E = 1.4426950408889634f;

union Vector {
    uint4 bits;
    Element elements[LANES];
};

// The peak of the values seen so far, in powers of two: max(value) * log2(e), rounded; and the sum
// of exp(value) / 2**peak, which is exact in that peak however it was rounded.
struct Running {
    float peak;
    float sum;
};

__device__ float widen(float value) { return value; }
__device__ float widen(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

__device__ Element narrow(float value) {
#ifdef BF16
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    return value;
#endif
}

__device__ float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

// exp(value) / 2**peak
__device__ float power(float value, float peak) {
    return power_of_two(fmaf(value, LOG2_E, -peak));
}

__device__ Running merge(Running one, Running other) {
    const float peak = fmaxf(one.peak, other.peak);
    return {peak, one.sum * power_of_two(one.peak - peak)
                      + other.sum * power_of_two(other.peak - peak)};
}

__device__ Running merge_lanes(Running mine) {
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        mine = merge(mine, {__shfl_xor_sync(~0u, mine.peak, distance),
                            __shfl_xor_sync(~0u, mine.sum, distance)});
    }
    return mine;
}

// Peak and sum travel together, so that the block meets once and not twice.
__device__ Running merge_block(Running mine) {
    __shared__ Running of_warp[32];
    mine = merge_lanes(mine);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    return merge_lanes(lane < WARPS ? of_warp[lane] : Running{LOWEST, 0.0f});
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax_rows(const Element* x, Element* y) {
    const long long start = (long long)blockIdx.x * COLS;
    // When COLS is odd most rows do not start at a multiple of 16 bytes: the elements before the
    // first one that does, and those after the last whole vector, are taken one by one.
    const int head = (int)((LANES - start % LANES) % LANES);
    const int vectors = (COLS - head) / LANES;
    const int edges = COLS - vectors * LANES;
    const uint4* body = reinterpret_cast<const uint4*>(x + start + head);
    const bool has_edge = threadIdx.x < edges;
    const int edge_at = threadIdx.x < head ? threadIdx.x : threadIdx.x + vectors * LANES;

    Vector held[HELD];
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int at = threadIdx.x + i * THREADS;
        held[i].bits = at < vectors ? body[at] : uint4{};
    }
    const float edge = has_edge ? widen(x[start + edge_at]) : LOWEST;

    Running mine = {edge, 0.0f};
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (threadIdx.x + i * THREADS < vectors) {
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                mine.peak = fmaxf(mine.peak, widen(held[i].elements[j]));
            }
        }
    }
    mine.peak *= LOG2_E;
    mine.sum = has_edge ? power(edge, mine.peak) : 0.0f;
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (threadIdx.x + i * THREADS < vectors) {
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                mine.sum += power(widen(held[i].elements[j]), mine.peak);
            }
        }
    }
    const Running row = merge_block(mine);
    const float scale = 1.0f / row.sum;

    uint4* out = reinterpret_cast<uint4*>(y + start + head);
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int at = threadIdx.x + i * THREADS;
        if (at < vectors) {
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                const float value = widen(held[i].elements[j]);
                held[i].elements[j] = narrow(power(value, row.peak) * scale);
            }
            out[at] = held[i].bits;
        }
    }
    if (has_edge) y[start + edge_at] = narrow(power(edge, row.peak) * scale);
}
