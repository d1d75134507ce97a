// Follows a chain of indices through memory, each of which is known only when the one before has
// arrived. Macros: HOPS; LINE, the words of a cache line.

constexpr unsigned NEVER = 0xffffffffu;  // no index: loads that feed a test for it are not dropped

// Reads every line once, so that the chase finds in L2 what fits there.
extern "C" __global__ void touch(const unsigned* __restrict__ chain, long long lines,
                                 unsigned* __restrict__ out) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned found = 0;
    for (long long line = first; line < lines; line += step) {
        found |= __ldcg(chain + line * LINE) == NEVER;
    }
    if (found) *out = NEVER;
}

// One thread follows the chain from index *start; before, its block reads as many lines into L1 as
// it has threads, which are all of a chain that is to be found there.
extern "C" __global__ void chase(const unsigned* chain, const unsigned* start, long long lines,
                                 unsigned* out) {
    const unsigned warm =
        threadIdx.x < lines ? chain[static_cast<long long>(threadIdx.x) * LINE] : 0;
    if (__syncthreads_or(warm == NEVER) || threadIdx.x > 0) return;
    unsigned at = *start;
#pragma unroll 8
    for (int hop = 0; hop < HOPS; ++hop) at = chain[at];
    *out = at;
}
