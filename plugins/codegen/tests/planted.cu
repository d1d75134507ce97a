// A copy in which mistakes can be planted. SCALAR moves one float at a time instead of four; BLOCKS
// asks for so many resident blocks that VALUES sums no longer fit a thread's registers.

#ifdef SCALAR
using Vector = float;
#else
using Vector = float4;
#endif

template <class T>
__global__ void copy_as(const T* __restrict__ in, T* __restrict__ out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
}

extern "C" __global__ void copy(const float* __restrict__ in, float* __restrict__ out) {
    constexpr int each = 4 / (sizeof(Vector) / sizeof(float));
    const Vector* from = reinterpret_cast<const Vector*>(in);
    Vector* to = reinterpret_cast<Vector*>(out);
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
    Vector moved[each];
#pragma unroll
    for (int i = 0; i < each; ++i) moved[i] = from[first + i];
#pragma unroll
    for (int i = 0; i < each; ++i) to[first + i] = moved[i];
}

constexpr int VALUES = 64;

extern "C" __global__ void __launch_bounds__(512, BLOCKS)
powers(const float* __restrict__ in, float* __restrict__ out) {
    float sums[VALUES] = {};
#pragma unroll 1
    for (int step = 0; step < 100; ++step) {
        const float x = in[step * 512 + threadIdx.x];
#pragma unroll
        for (int i = 0; i < VALUES; ++i) sums[i] = sums[i] * x + i;
    }
#pragma unroll
    for (int i = 0; i < VALUES; ++i) out[i * 512 + threadIdx.x] = sums[i];
}
