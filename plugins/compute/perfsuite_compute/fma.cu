// A chain of fused multiply-adds that stays in registers: what the CUDA cores and the SM clock give.

// Each thread's chains do not wait for each other: FMA latency is 4 cycles, so 4 hide it in a warp.
constexpr int CHAINS = 4;

extern "C" __global__ void fma_loop(const float* x, float* y, long long n) {
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    float value[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
        const long long at = first + chain * stride;
        value[chain] = at < n ? x[at] : 0.0f;
    }
#pragma unroll 8
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; ++chain) {
            value[chain] = fmaf(value[chain], SCALE, SHIFT);
        }
    }
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
        const long long at = first + chain * stride;
        if (at < n) {
            y[at] = value[chain];
        }
    }
}
