// A kernel that leaves most of a GPU idle: a few blocks, each thread waiting for its own results.
// Macros: THREADS, ROUNDS.

constexpr unsigned MULTIPLIER = 1664525u;
constexpr unsigned INCREMENT = 1013904223u;

extern "C" __global__ void __launch_bounds__(THREADS) advance(const unsigned* from, unsigned* to) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    unsigned value = from[i];
    // Not unrolled: a compiler that sees several rounds could make one of them.
    #pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) value = value * MULTIPLIER + INCREMENT;
    to[i] = value;
}
