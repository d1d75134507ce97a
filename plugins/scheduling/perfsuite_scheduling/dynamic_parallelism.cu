// Items whose size only the device knows: the host reads it and launches, or the device launches.
// Macros: THREADS, MOST (values an item has at most, a power of two), ROUNDS. Relocatable code.

constexpr unsigned MULTIPLIER = 1664525u;
constexpr unsigned INCREMENT = 1013904223u;
static_assert((MOST & (MOST - 1)) == 0, "sizes are taken modulo MOST");

// Works through the first `count` values of an item.
extern "C" __global__ void __launch_bounds__(THREADS)
child(const unsigned* x, unsigned* y, long long item, long long count) {
    const int place = blockIdx.x * THREADS + threadIdx.x;
    if (place >= count) return;
    const long long i = item * MOST + place;
    unsigned value = x[i];
    #pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) value = value * MULTIPLIER + INCREMENT;
    y[i] = value;
}

// The item's first value says how many of its values are to be worked through: 1 to MOST.
__device__ int count_of(const unsigned* x, int item) {
    return 1 + (int)((x[item * MOST] >> 8) % MOST);
}

// Leaves the values alone that nobody works through; returns how many are worked through.
__device__ int leave_rest(const unsigned* x, unsigned* y, int item) {
    const int count = count_of(x, item);
    for (int place = count + threadIdx.x; place < MOST; place += THREADS) {
        y[item * MOST + place] = x[item * MOST + place];
    }
    return count;
}

// One block an item, from `first` on: writes how large it is, for the host to read.
extern "C" __global__ void __launch_bounds__(THREADS)
measure(const unsigned* x, unsigned* y, int* counts, long long first) {
    const int item = (int)first + blockIdx.x;
    const int count = leave_rest(x, y, item);
    if (threadIdx.x == 0) counts[item] = count;
}

#ifdef __CUDACC_RDC__
// One block an item: it launches the item's child itself, and does not wait for it. The grid ends
// when its children have ended. A child touches no value that its parent writes.
extern "C" __global__ void __launch_bounds__(THREADS)
parent(const unsigned* x, unsigned* y) {
    const int item = blockIdx.x;
    const int count = leave_rest(x, y, item);
    if (threadIdx.x == 0) {
        const int blocks = (count + THREADS - 1) / THREADS;
        child<<<blocks, THREADS, 0, cudaStreamFireAndForget>>>(x, y, item, count);
    }
}
#endif
