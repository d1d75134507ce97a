// out[i] = sum over j < LOOKUPS of table[key[i] + j * STEP], modulo 2^32: a small table that every
// thread reads, by four ways. Its first SIZE words come again behind them, so that no lookup needs a
// division: integer arithmetic, at half the rate of other, would be the limit. Macros: THREADS,
// LOOKUPS, STEP, SIZE.

constexpr unsigned WORDS = SIZE + (LOOKUPS - 1) * STEP;

// The table's word i, as the builder fills it in: known to the compiler, so that it can lie in
// constant memory.
__host__ __device__ constexpr unsigned word(unsigned i) { return (i % SIZE + 1) * 2654435761u; }

struct Words {
    unsigned word[WORDS];
};

__host__ __device__ constexpr Words all_words() {
    Words words = {};
    for (unsigned i = 0; i < WORDS; ++i) words.word[i] = word(i);
    return words;
}

__constant__ Words constant = all_words();

template <class Table>
__device__ __forceinline__ unsigned look_up(Table table, unsigned key) {
    unsigned sum = 0;
#pragma unroll
    for (int j = 0; j < LOOKUPS; ++j) sum += table(static_cast<int>(key) + j * STEP);
    return sum;
}

// Takes 16 bytes of keys a thread in turn, the next ones on their way while these are looked up. A
// warp whose keys agree by 32 then asks for four words at once, which L1 finds in one cycle, and
// shared memory unless two of them lie in one bank.
template <class Table>
__device__ __forceinline__ void look_up_all(Table table, const unsigned* keys, unsigned* out,
                                            long long n) {
    const long long vectors = n / 4, step = static_cast<long long>(gridDim.x) * THREADS;
    long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    // One block has come to the rest, of three words at most.
    if (i < n - 4 * vectors) out[4 * vectors + i] = look_up(table, keys[4 * vectors + i]);
    const uint4* from = reinterpret_cast<const uint4*>(keys);
    uint4* to = reinterpret_cast<uint4*>(out);
    uint4 next;
    if (i < vectors) next = from[i];
    for (; i < vectors; i += step) {
        const uint4 now = next;
        if (i + step < vectors) next = from[i + step];
        to[i] = {look_up(table, now.x), look_up(table, now.y), look_up(table, now.z),
                 look_up(table, now.w)};
    }
}

// The same by words, so that a warp's lanes want one word at once wherever their keys agree.
template <class Table>
__device__ __forceinline__ void look_up_words(Table table, const unsigned* keys, unsigned* out,
                                              long long n) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    for (; i < n; i += step) out[i] = look_up(table, keys[i]);
}

// Nothing says that out is not a part of the table, so that the compiler must expect each store to
// change it.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_plain(
    const unsigned* table, const unsigned* keys, unsigned* out, long long n) {
    look_up_all([=](int at) { return table[at]; }, keys, out, n);
}

extern "C" __global__ __launch_bounds__(THREADS) void look_up_readonly(
    const unsigned* __restrict__ table, const unsigned* __restrict__ keys,
    unsigned* __restrict__ out, long long n) {
    look_up_all([=](int at) { return table[at]; }, keys, out, n);
}

// Serves a warp whose lanes all want one word at once, and different words one after another.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_constant(
    const unsigned*, const unsigned* __restrict__ keys, unsigned* __restrict__ out, long long n) {
    look_up_words([](int at) { return constant.word[at]; }, keys, out, n);
}

// A copy for each block: lanes are held up where they meet in a bank, not in a line.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_shared(
    const unsigned* __restrict__ table, const unsigned* __restrict__ keys,
    unsigned* __restrict__ out, long long n) {
    __shared__ unsigned own[WORDS];
    for (int i = threadIdx.x; i < WORDS; i += THREADS) own[i] = table[i];
    __syncthreads();
    look_up_all([&](int at) { return own[at]; }, keys, out, n);
}
