// out[i] = sum over j < LOOKUPS of table[(key[i] + j * STEP) % SIZE], modulo 2^32: a small table
// that every thread reads, by four ways. Macros: THREADS, LOOKUPS, STEP; SIZE, a power of two.

// The table's word i, as the builder fills it in: known to the compiler, so that it can lie in
// constant memory.
__host__ __device__ constexpr unsigned word(unsigned i) { return (i + 1) * 2654435761u; }

struct Words {
    unsigned word[SIZE];
};

__host__ __device__ constexpr Words all_words() {
    Words words = {};
    for (unsigned i = 0; i < SIZE; ++i) words.word[i] = word(i);
    return words;
}

__constant__ Words constant = all_words();

template <class Table>
__device__ __forceinline__ unsigned look_up(Table table, unsigned key) {
    unsigned sum = 0;
#pragma unroll
    for (unsigned j = 0; j < LOOKUPS; ++j) sum += table((key + j * STEP) % SIZE);
    return sum;
}

// Nothing says that out is not a part of the table, so that the compiler must expect each store to
// change it.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_plain(const unsigned* table,
                                                                    const unsigned* keys,
                                                                    unsigned* out, long long n) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += step) {
        out[i] = look_up([=](unsigned at) { return table[at]; }, keys[i]);
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void look_up_readonly(
    const unsigned* __restrict__ table, const unsigned* __restrict__ keys,
    unsigned* __restrict__ out, long long n) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += step) {
        out[i] = look_up([=](unsigned at) { return table[at]; }, keys[i]);
    }
}

// Serves a warp whose lanes all want one word at once, and different words one after another.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_constant(
    const unsigned*, const unsigned* __restrict__ keys, unsigned* __restrict__ out, long long n) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += step) {
        out[i] = look_up([](unsigned at) { return constant.word[at]; }, keys[i]);
    }
}

// A copy for each block: lanes are held up where they meet in a bank, not in a line.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_shared(
    const unsigned* __restrict__ table, const unsigned* __restrict__ keys,
    unsigned* __restrict__ out, long long n) {
    __shared__ unsigned own[SIZE];
    for (int i = threadIdx.x; i < SIZE; i += THREADS) own[i] = table[i];
    __syncthreads();
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += step) {
        out[i] = look_up([&](unsigned at) { return own[at]; }, keys[i]);
    }
}
