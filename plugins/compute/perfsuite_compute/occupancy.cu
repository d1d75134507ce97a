// y = 2x with little work a thread, so that only threads in flight keep the memory busy. Macros:
// THREADS and, for scale_or_median, LEAST_BLOCKS.

constexpr int QUADS = 8;      // vectors of four a thread of scale_wide
constexpr int WINDOW = 64;    // neighbours that the rare path sorts
constexpr float USUAL = 1e30f;

extern "C" __global__ void __launch_bounds__(THREADS)
scale_pairs(const float* x, float* y, long long n) {
    const long long at = 2 * ((long long)blockIdx.x * THREADS + threadIdx.x);
    if (at + 1 < n) {
        const float2 pair = *reinterpret_cast<const float2*>(x + at);
        *reinterpret_cast<float2*>(y + at) = make_float2(2 * pair.x, 2 * pair.y);
    } else if (at < n) {
        y[at] = 2 * x[at];
    }
}

// All loads of a thread are issued before its first store: 128 bytes in flight, not 8.
extern "C" __global__ void __launch_bounds__(THREADS)
scale_wide(const float* x, float* y, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * QUADS + threadIdx.x;
    const long long quads = n / 4;
    float4 quad[QUADS];
    #pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const long long at = first + i * THREADS;
        quad[i] = at < quads ? reinterpret_cast<const float4*>(x)[at] : make_float4(0, 0, 0, 0);
    }
    #pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const long long at = first + i * THREADS;
        if (at < quads) {
            reinterpret_cast<float4*>(y)[at] =
                make_float4(2 * quad[i].x, 2 * quad[i].y, 2 * quad[i].z, 2 * quad[i].w);
        }
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < n % 4) {
        y[quads * 4 + threadIdx.x] = 2 * x[quads * 4 + threadIdx.x];
    }
}

// The median of the WINDOW values around `at`, all of them in registers (a bitonic network).
__device__ float median_around(const float* x, long long at, long long n) {
    const long long first = at / WINDOW * WINDOW;
    float value[WINDOW];
    #pragma unroll
    for (int i = 0; i < WINDOW; ++i) value[i] = x[min(first + i, n - 1)];
    #pragma unroll
    for (int size = 2; size <= WINDOW; size *= 2) {
        #pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            #pragma unroll
            for (int i = 0; i < WINDOW; ++i) {
                if ((i & step) == 0) {
                    const float low = fminf(value[i], value[i + step]);
                    const float high = fmaxf(value[i], value[i + step]);
                    value[i] = (i & size) == 0 ? low : high;
                    value[i + step] = (i & size) == 0 ? high : low;
                }
            }
        }
    }
    return value[WINDOW / 2];
}

// As scale_pairs, but a value out of all bounds becomes its neighbours' median. It never comes; its
// registers are taken all the same, by every thread.
extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
scale_or_median(const float* x, float* y, long long n) {
    const long long at = 2 * ((long long)blockIdx.x * THREADS + threadIdx.x);
    if (at >= n) return;
    const bool whole = at + 1 < n;
    float2 pair = whole ? *reinterpret_cast<const float2*>(x + at) : make_float2(x[at], 0.0f);
    if (fmaxf(fabsf(pair.x), fabsf(pair.y)) > USUAL) {
        const float median = median_around(x, at, n);
        pair.x = fabsf(pair.x) > USUAL ? median : pair.x;
        pair.y = fabsf(pair.y) > USUAL ? median : pair.y;
    }
    if (whole) {
        *reinterpret_cast<float2*>(y + at) = make_float2(2 * pair.x, 2 * pair.y);
    } else {
        y[at] = 2 * pair.x;
    }
}
