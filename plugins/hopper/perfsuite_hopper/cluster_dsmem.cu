// How often each of BINS values occurs among `count` values, a multiple of 4, in [0, BINS); the
// counts must be 0 before. Macros: BINS, THREADS.

constexpr int BLOCKS = 8;  // of a cluster: the most that every GPU with clusters takes
constexpr int OWN = BINS / BLOCKS;
static_assert(BINS % (BLOCKS * THREADS) == 0, "whole rounds of bins a block");

template <typename Add>
__device__ void for_each(const int4* values, long long count, Add add) {
    const long long stride = (long long)gridDim.x * THREADS;
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < count / 4; i += stride) {
        const int4 four = values[i];
        add(four.x);
        add(four.y);
        add(four.z);
        add(four.w);
    }
}

// All blocks add to the same counts in global memory, that is, in L2.
extern "C" __global__ void __launch_bounds__(THREADS)
count_global(const int4* values, int* counts, long long size) {
    for_each(values, size, [&](int value) { atomicAdd(&counts[value], 1); });
}

__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A cluster keeps all counts, an eighth in each block's shared memory, and adds them to those in
// global memory at its end. gridDim.x is a multiple of BLOCKS.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
count_cluster(const int4* values, int* counts, long long size) {
    __shared__ int own[OWN];
    for (int i = threadIdx.x; i < OWN; i += THREADS) own[i] = 0;
    cluster_sync();

    const unsigned base = (unsigned)__cvta_generic_to_shared(own);
    for_each(values, size, [&](int value) {
        unsigned remote;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(remote)
            : "r"(base + (unsigned)value % OWN * 4), "r"((unsigned)value / OWN));
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(remote) : "memory");
    });

    // No block may leave, or read its counts, while another still adds to them.
    cluster_sync();
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    for (int i = threadIdx.x; i < OWN; i += THREADS) {
        atomicAdd(&counts[rank * OWN + i], own[i]);
    }
}
