// Items of three kinds: 0 is left alone, 1 and 2 take ROUNDS rounds of v -> v * multiplier +
// increment modulo 2**32, each with constants of its own. Macros: THREADS, ITEMS (a thread's, of
// the compacting kernel), ROUNDS, and the constants FIRST_* and SECOND_*.

constexpr int TILE = THREADS * ITEMS;
constexpr int WARPS = THREADS / 32;

// The compiler may not see the constants: it would make one round of several.
__device__ unsigned hidden(unsigned value) {
    asm("" : "+r"(value));
    return value;
}

__device__ unsigned advance(unsigned value, unsigned multiplier, unsigned increment) {
    #pragma unroll 8
    for (int round = 0; round < ROUNDS; ++round) value = value * multiplier + increment;
    return value;
}

__device__ unsigned take_first(unsigned value) {
    return advance(value, hidden(FIRST_MULTIPLIER), hidden(FIRST_INCREMENT));
}

__device__ unsigned take_second(unsigned value) {
    return advance(value, hidden(SECOND_MULTIPLIER), hidden(SECOND_INCREMENT));
}

// What is written first: a warp with both kinds takes both paths, one after the other.
extern "C" __global__ void __launch_bounds__(THREADS)
take_branchy(const unsigned char* kinds, const unsigned* from, unsigned* to, long long n) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const int kind = kinds[i];
    unsigned value = from[i];
    if (kind == 1) {
        value = take_first(value);
    } else if (kind == 2) {
        value = take_second(value);
    }
    to[i] = value;
}

// One path for all, whose constants are chosen: kind 0 takes rounds that change nothing.
extern "C" __global__ void __launch_bounds__(THREADS)
take_predicated(const unsigned char* kinds, const unsigned* from, unsigned* to, long long n) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const int kind = kinds[i];
    const unsigned multiplier = kind == 0 ? 1u : kind == 1 ? FIRST_MULTIPLIER : SECOND_MULTIPLIER;
    const unsigned increment = kind == 0 ? 0u : kind == 1 ? FIRST_INCREMENT : SECOND_INCREMENT;
    to[i] = advance(from[i], hidden(multiplier), hidden(increment));
}

// A block sorts its tile by kind before it works: its warps then have one kind each. Numbers of
// kind 1 are listed from the front, those of kind 2 from the back, in any order.
extern "C" __global__ void __launch_bounds__(THREADS)
take_compacted(const unsigned char* kinds, const unsigned* from, unsigned* to, long long n) {
    __shared__ unsigned values[TILE];
    __shared__ unsigned short order[TILE];
    __shared__ int counts[2];
    const long long first = (long long)blockIdx.x * TILE;
    const int size = (int)min((long long)TILE, n - first);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < 2) counts[threadIdx.x] = 0;
    __syncthreads();
    #pragma unroll
    for (int item = threadIdx.x; item < TILE; item += THREADS) {
        const int kind = item < size ? kinds[first + item] : 0;
        if (item < size) values[item] = from[first + item];
        #pragma unroll
        for (int wanted = 1; wanted <= 2; ++wanted) {
            const unsigned mates = __ballot_sync(~0u, kind == wanted);
            int base = 0;
            if (lane == 0) base = atomicAdd(&counts[wanted - 1], __popc(mates));
            base = __shfl_sync(~0u, base, 0);
            if (kind == wanted) {
                const int rank = base + __popc(mates & ((1u << lane) - 1));
                order[wanted == 1 ? rank : TILE - 1 - rank] = (unsigned short)item;
            }
        }
    }
    __syncthreads();
    const int firsts = (counts[0] + 31) / 32, seconds = (counts[1] + 31) / 32;  // in warps
    for (int share = warp; share < firsts + seconds; share += WARPS) {
        const bool is_first = share < firsts;  // the same for a whole warp
        const int rank = (is_first ? share : share - firsts) * 32 + lane;
        if (is_first && rank < counts[0]) {
            const int item = order[rank];
            values[item] = take_first(values[item]);
        } else if (!is_first && rank < counts[1]) {
            const int item = order[TILE - 1 - rank];
            values[item] = take_second(values[item]);
        }
    }
    __syncthreads();
    #pragma unroll
    for (int item = threadIdx.x; item < TILE; item += THREADS) {
        if (item < size) to[first + item] = values[item];
    }
}
