// Copies n floats in words of 4, 8 or 16 bytes, one access a thread at a time. Macros: THREADS, and
// SHIFT, the floats by which the input lies past a 16-byte boundary; the output lies on one. words
// takes any SHIFT, pairs and vectors 0 only, realigned 1 to 3.

// One access in flight a thread: unrolled, a loop over words would have as much in flight as one
// over vectors, and hide what it takes more of, which is instructions.
template <class Access>
__device__ __forceinline__ void copy(const float* __restrict__ x, float* __restrict__ out,
                                     long long n) {
    constexpr int WIDTH = sizeof(Access) / sizeof(float);
    const long long whole = n / WIDTH;
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    const long long first = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
#pragma unroll 1
    for (long long i = first; i < whole; i += step) {
        reinterpret_cast<Access*>(out)[i] = reinterpret_cast<const Access*>(x)[i];
    }
    if (first < n - whole * WIDTH) out[whole * WIDTH + first] = x[whole * WIDTH + first];
}

extern "C" __global__ __launch_bounds__(THREADS) void copy_words(
    const float* __restrict__ x, float* __restrict__ out, long long n) {
    copy<float>(x, out, n);
}

extern "C" __global__ __launch_bounds__(THREADS) void copy_pairs(
    const float* __restrict__ x, float* __restrict__ out, long long n) {
    copy<float2>(x, out, n);
}

extern "C" __global__ __launch_bounds__(THREADS) void copy_vectors(
    const float* __restrict__ x, float* __restrict__ out, long long n) {
    copy<float4>(x, out, n);
}

// Word k of two neighbouring vectors; k is known when this is compiled.
__device__ __forceinline__ float word(const float4& v, const float4& next, int k) {
    switch (k) {
        case 0: return v.x;
        case 1: return v.y;
        case 2: return v.z;
        case 3: return v.w;
        case 4: return next.x;
        case 5: return next.y;
        default: return next.z;
    }
}

// Reads the aligned vectors that the input lies across and puts each output vector together from
// two of them; a lane gets the second from its neighbour. The first vector begins SHIFT floats
// before x, in the same 16 bytes, which an allocation owns whole.
extern "C" __global__ __launch_bounds__(THREADS) void copy_realigned(
    const float* __restrict__ x, float* __restrict__ out, long long n) {
    const float4* from = reinterpret_cast<const float4*>(x - SHIFT);
    const long long whole = n / 4;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    float4 v = {}, next = {};
    if (i < whole) v = from[i];
    next.x = __shfl_down_sync(0xffffffffu, v.x, 1);
    next.y = __shfl_down_sync(0xffffffffu, v.y, 1);
    next.z = __shfl_down_sync(0xffffffffu, v.z, 1);
    if (i < whole) {
        // No neighbour has it: word by word, since the vector may end behind the allocation.
        if (threadIdx.x % 32 == 31 || i + 1 == whole) {
            const float* tail = x - SHIFT + 4 * (i + 1);
            next.x = tail[0];
            if (SHIFT > 1) next.y = tail[1];
            if (SHIFT > 2) next.z = tail[2];
        }
        reinterpret_cast<float4*>(out)[i] =
            make_float4(word(v, next, SHIFT), word(v, next, SHIFT + 1), word(v, next, SHIFT + 2),
                        word(v, next, SHIFT + 3));
    }
    if (i < n - whole * 4) out[whole * 4 + i] = x[whole * 4 + i];
}
