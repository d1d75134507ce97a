// Work of a length that is free to choose, with exact results: ROUNDS dependent steps
// v -> 1664525 v + 1013904223 modulo 2^32 on each value (Numerical Recipes, chapter 7.1).

extern "C" __global__ void advance(unsigned* values, long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned value = values[i];
    // Not unrolled: a compiler that sees several rounds could make one of them.
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) value = value * 1664525u + 1013904223u;
    values[i] = value;
}
