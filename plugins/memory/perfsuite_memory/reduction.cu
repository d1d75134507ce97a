// Sums of floats as they are usually written at first, and with warp shuffles. What comes after
// them, whole vectors and blocks that stay, is stream.cu's stream_read.
//
// THREADS comes from the builder: a power of two from 32 to 1024.

// One atomic addition an element, all to the same address; *out must be 0 before.
extern "C" __global__ __launch_bounds__(THREADS) void reduction_atomic(const float* x, float* out,
                                                                       long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) atomicAdd(out, x[i]);
}

// One element a thread, halved in shared memory with a barrier each time; sums[block] is one
// block's, and the next launch adds those.
extern "C" __global__ __launch_bounds__(THREADS) void reduction_tree(const float* x, float* sums,
                                                                     long long n) {
    __shared__ float values[THREADS];
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    values[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = values[0];
}

__device__ __forceinline__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    return value;  // right in lane 0
}

// Threads stride over the elements, warps add by shuffles, and one barrier joins the warps.
extern "C" __global__ __launch_bounds__(THREADS) void reduction_shuffle(const float* x, float* sums,
                                                                        long long n) {
    __shared__ float warps[THREADS / 32];
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    float sum = 0.0f;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride) {
        sum += x[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    }
}
