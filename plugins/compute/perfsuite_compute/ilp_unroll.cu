// Chains of fused multiply-adds with one warp for each scheduler: only what a thread itself keeps
// in flight hides the latency. Macros: THREADS, STEPS, SCALE, SHIFT, CHAINS, UNROLL.

extern "C" __global__ void __launch_bounds__(THREADS)
fma_chains(const float* x, float* y, long long size) {
    const int n = (int)size;
    const int threads = gridDim.x * THREADS;
    for (int first = blockIdx.x * THREADS + threadIdx.x; first < n; first += threads * CHAINS) {
        float value[CHAINS];
        #pragma unroll
        for (int chain = 0; chain < CHAINS; ++chain) {
            const int at = first + chain * threads;
            value[chain] = at < n ? x[at] : 0.0f;
        }
        #pragma unroll UNROLL
        for (int step = 0; step < STEPS; ++step) {
            #pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain) {
                value[chain] = fmaf(value[chain], SCALE, SHIFT);
            }
        }
        #pragma unroll
        for (int chain = 0; chain < CHAINS; ++chain) {
            const int at = first + chain * threads;
            if (at < n) y[at] = value[chain];
        }
    }
}
