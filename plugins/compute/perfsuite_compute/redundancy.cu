// Rotary embedding of x[token][head][2 * PAIRS]: the angle of pair i at position t is
// t * 10000**(-i / PAIRS), the same for all heads. Macros: THREADS, HEADS, PAIRS, and EACH, the
// heads that one thread of rotate_hoisted takes.

constexpr float BASE = 10000.0f;
constexpr int QUADS = PAIRS / 2;              // vectors of two pairs in a head
constexpr int SPLITS = (HEADS + EACH - 1) / EACH;

__device__ float4 turned(float4 x, float2 low, float2 high) {
    return make_float4(x.x * low.x - x.y * low.y, x.x * low.y + x.y * low.x,
                       x.z * high.x - x.w * high.y, x.z * high.y + x.w * high.x);
}

// Cosine and sine for one pair; fast: the special function unit throughout.
template <bool FAST>
__device__ float2 angle_of(int token, int pair) {
    float2 found;
    if (FAST) {
        const float angle = token * __powf(BASE, -(float)pair / PAIRS);
        found.x = __cosf(angle);
        found.y = __sinf(angle);
    } else {
        const float angle = token * powf(BASE, -(float)pair / PAIRS);
        found.x = cosf(angle);
        found.y = sinf(angle);
    }
    return found;
}

// What is written first: every element finds its own angle, HEADS times the same.
template <bool FAST>
__device__ void rotate_each(const float4* x, float4* y, int tokens) {
    const int at = blockIdx.x * THREADS + threadIdx.x;  // below 2**31 / 4 by the size of x
    const int token = at / (HEADS * QUADS);
    if (token < tokens) {
        const int pair = at % QUADS * 2;
        y[at] = turned(x[at], angle_of<FAST>(token, pair), angle_of<FAST>(token, pair + 1));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
rotate_recompute(const float4* x, float4* y, long long tokens) {
    rotate_each<false>(x, y, (int)tokens);
}

extern "C" __global__ void __launch_bounds__(THREADS)
rotate_fast(const float4* x, float4* y, long long tokens) {
    rotate_each<true>(x, y, (int)tokens);
}

// A thread keeps its two angles in registers for EACH heads, whose loads it begins with: they are on
// their way while it finds the angles.
extern "C" __global__ void __launch_bounds__(THREADS)
rotate_hoisted(const float4* __restrict__ x, float4* __restrict__ y, long long tokens) {
    const int at = blockIdx.x * THREADS + threadIdx.x;
    const int quad = at % QUADS;
    const int token = at / (QUADS * SPLITS);
    const int begin = at / QUADS % SPLITS * EACH;
    if (token >= (int)tokens) return;
    const int first = (token * HEADS + begin) * QUADS + quad;
    float4 found[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (HEADS % EACH == 0 || begin + i < HEADS) found[i] = x[first + i * QUADS];
    }
    const float2 low = angle_of<false>(token, quad * 2);
    const float2 high = angle_of<false>(token, quad * 2 + 1);
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (HEADS % EACH == 0 || begin + i < HEADS) {
            y[first + i * QUADS] = turned(found[i], low, high);
        }
    }
}
