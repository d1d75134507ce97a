// A chain of fused multiply-adds that stays in registers: what the CUDA cores and the SM clock give.

// Sixteen blocks, of a warp for each scheduler, fill an SM. FMA latency is 4 cycles: the chains of
// one warp hide it, before the others have their numbers.
constexpr int THREADS = 128, CHAINS = 16;

// The grid has a thread for every CHAINS numbers.
extern "C" __global__ __launch_bounds__(THREADS, 16) void fma_loop(const float* x, float* y) {
    const long long first = static_cast<long long>(blockIdx.x) * THREADS * CHAINS + threadIdx.x;
    float value[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
        value[chain] = x[first + chain * THREADS];
    }
    // 512 FMA for each counting and branching of the loop.
#pragma unroll 32
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; ++chain) {
            value[chain] = fmaf(value[chain], SCALE, SHIFT);
        }
    }
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
        y[first + chain * THREADS] = value[chain];
    }
}
