// Counts how often each of BINS values occurs among n. counts must be 0 before. Macros: THREADS,
// BINS, UNROLL. Keys lie between 0 and BINS - 1, and begin at a multiple of 16 bytes.

constexpr int VECTORS = UNROLL;  // of four keys, that a thread has on their way at once

struct Each {
    unsigned* counts;
    __device__ __forceinline__ void add(int key) { atomicAdd(counts + key, 1u); }
};

// Lanes with the same key elect one who adds for all of them.
struct Elected {
    unsigned* counts;
    __device__ __forceinline__ void add(int key) {
        const unsigned same = __match_any_sync(__activemask(), key);
        if (threadIdx.x % 32 == __ffs(same) - 1) {
            atomicAdd(counts + key, static_cast<unsigned>(__popc(same)));
        }
    }
};

template <class Counter>
__device__ __forceinline__ void add_all(int4 v, Counter counter) {
    counter.add(v.x);
    counter.add(v.y);
    counter.add(v.z);
    counter.add(v.w);
}

// Threads stride over the keys, four at a time; the first ones take what is no multiple of 4.
template <class Counter>
__device__ __forceinline__ void count(const int* __restrict__ keys, long long n, Counter counter) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    const long long first = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const int4* vectors = reinterpret_cast<const int4*>(keys);
    long long i = first;
    for (; i + (VECTORS - 1) * step < n / 4; i += VECTORS * step) {
        int4 v[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) v[j] = __ldg(vectors + i + j * step);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j) add_all(v[j], counter);
    }
#pragma unroll 1
    for (; i < n / 4; i += step) add_all(__ldg(vectors + i), counter);
    if (first < n % 4) counter.add(keys[n / 4 * 4 + first]);
}

// Through counters of the block's own, added to all others' at the end.
template <class Counter>
__device__ __forceinline__ void count_in_block(const int* __restrict__ keys, unsigned* counts,
                                               long long n) {
    __shared__ unsigned own[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) own[bin] = 0;
    __syncthreads();
    count(keys, n, Counter{own});
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) atomicAdd(counts + bin, own[bin]);
}

extern "C" __global__ __launch_bounds__(THREADS) void count_global(const int* keys,
                                                                   unsigned* counts, long long n) {
    count(keys, n, Each{counts});
}

extern "C" __global__ __launch_bounds__(THREADS) void count_elected(
    const int* keys, unsigned* counts, long long n) {
    count(keys, n, Elected{counts});
}

extern "C" __global__ __launch_bounds__(THREADS) void count_shared(const int* keys,
                                                                   unsigned* counts, long long n) {
    count_in_block<Each>(keys, counts, n);
}

extern "C" __global__ __launch_bounds__(THREADS) void count_shared_elected(
    const int* keys, unsigned* counts, long long n) {
    count_in_block<Elected>(keys, counts, n);
}
