// A small kernel whose length is an argument: one step of a sequence for `count` values. Macros:
// THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
advance_some(const unsigned* from, unsigned* to, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) to[i] = from[i] * 1664525u + 1013904223u;
}
