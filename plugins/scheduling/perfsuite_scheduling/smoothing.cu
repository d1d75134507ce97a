// A chain of small dependent steps over N values on a ring, once as one kernel a step and once as
// one kernel for all of them. Macros: N, THREADS.

constexpr unsigned BLOCKS = N / THREADS;
static_assert(N % THREADS == 0, "each thread has one value");
// Arrivals are counted modulo 2**32: a power of two divides that, also when the count wraps.
static_assert((BLOCKS & (BLOCKS - 1)) == 0, "the number of blocks must be a power of two");

__device__ float smoothed(const float* from, int i) {
    const float beside = from[i == 0 ? N - 1 : i - 1] + from[i == N - 1 ? 0 : i + 1];
    return 0.5f * from[i] + 0.25f * beside;
}

extern "C" __global__ void __launch_bounds__(THREADS) step(const float* from, float* to) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    to[i] = smoothed(from, i);
}

// Waits until `count` of those that meet have arrived as often as this one. The counter is never
// reset: whichever launch is running, `count` arrivals make one meeting, so a replayed graph finds it
// as it must be.
__device__ void arrive_and_wait(unsigned* arrivals, unsigned count) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(arrivals) : "memory");
    const unsigned full = (before / count + 1) * count;
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now) : "l"(arrivals) : "memory");
    } while ((int)(now - full) < 0);
}

// Takes count steps from x and leaves the last in y; scratch holds every other one. All blocks must
// be on the GPU at once, else those that wait keep those that are waited for from starting.
template <class Meet>
__device__ void take_steps(const float* x, float* y, float* scratch, long long count, Meet meet) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    const float* from = x;
    for (long long left = count - 1; left >= 0; --left) {
        float* to = left % 2 == 0 ? y : scratch;
        to[i] = smoothed(from, i);
        from = to;
        if (left > 0) meet();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
steps(const float* x, float* y, float* scratch, unsigned* arrivals, long long count) {
    take_steps(x, y, scratch, count, [&] {
        __syncthreads();
        if (threadIdx.x == 0) arrive_and_wait(arrivals, BLOCKS);
        __syncthreads();
    });
}

#if __CUDA_ARCH__ >= 900
constexpr unsigned CLUSTER = 8;  // as many blocks as every GPU with clusters allows
constexpr unsigned CLUSTERS = BLOCKS / CLUSTER;
static_assert(BLOCKS % CLUSTER == 0, "whole clusters");

__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The hardware's barrier within a cluster; where there are several, one thread of each waits for
// the others'. What a block wrote before it arrived is passed on by each of the barriers in turn.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
steps_cluster(const float* x, float* y, float* scratch, unsigned* arrivals, long long count) {
    take_steps(x, y, scratch, count, [&] {
        meet_cluster();
        if (CLUSTERS > 1) {
            if (blockIdx.x % CLUSTER == 0 && threadIdx.x == 0) {
                arrive_and_wait(arrivals, CLUSTERS);
            }
            __syncwarp();  // the barrier wants a warp's threads together
            meet_cluster();
        }
    });
}
#endif
