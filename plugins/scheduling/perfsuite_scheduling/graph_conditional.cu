// Euclid's algorithm on pairs, a step a launch, and the end of a loop that the GPU decides itself.
// Macros: THREADS.

// Part of the device's runtime, which NVRTC knows without any header.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);

// A pair without a remainder stays as it is. Sets *more where a pair has one left.
extern "C" __global__ void __launch_bounds__(THREADS)
euclid_step(const unsigned* from_a, const unsigned* from_b, unsigned* to_a, unsigned* to_b,
            unsigned* more, long long n) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    unsigned rest = 0;
    if (i < n) {
        const unsigned a = from_a[i], b = from_b[i];
        rest = b == 0 ? 0 : a % b;
        to_a[i] = b == 0 ? a : b;
        to_b[i] = rest;
    }
    if (__syncthreads_or(rest != 0) && threadIdx.x == 0) {
        *more = 1;  // the same from every block
    }
}

// One thread: the loop goes on if the last step said so.
extern "C" __global__ void decide(unsigned* more, cudaGraphConditionalHandle handle) {
    cudaGraphSetConditional(handle, *more);
    *more = 0;
}
