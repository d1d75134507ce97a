// out[i] = sum over j < LOOKUPS of table[key[i] + j * STEP], modulo 2^32: a small table that every
// thread reads, by four ways. Its first SIZE words come again behind them, so that no lookup needs a
// division: integer arithmetic, at half the rate of other, would be the limit. Macros: THREADS,
// LOOKUPS, STEP, SIZE; ITEMS, the keys a thread has at once.

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

// Takes tiles of ITEMS keys a thread in turn, the next tile's keys on their way while this one's are
// looked up. Neighbours take neighbouring keys, not four each: a warp's lanes are to agree.
template <class Table>
__device__ __forceinline__ void look_up_all(Table table, const unsigned* keys, unsigned* out,
                                            long long n) {
    constexpr int TILE = THREADS * ITEMS;
    const long long whole = n / TILE * TILE;
    const long long step = static_cast<long long>(gridDim.x) * TILE;
    long long i = static_cast<long long>(blockIdx.x) * TILE + threadIdx.x;
    unsigned next[ITEMS];
    if (i < whole) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) next[j] = keys[i + j * THREADS];
    }
    while (i < whole) {
        unsigned now[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) now[j] = next[j];
        if (i + step < whole) {
#pragma unroll
            for (int j = 0; j < ITEMS; ++j) next[j] = keys[i + step + j * THREADS];
        }
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) out[i + j * THREADS] = look_up(table, now[j]);
        i += step;
    }
    // One block has come to the rest, less than a tile.
    for (; i < n; i += THREADS) out[i] = look_up(table, keys[i]);
}

// Nothing says that out is not a part of the table, so that the compiler must expect each store to
// change it.
extern "C" __global__ __launch_bounds__(THREADS) void look_up_plain(const unsigned* table,
                                                                    const unsigned* keys,
                                                                    unsigned* out, long long n) {
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
    look_up_all([](int at) { return constant.word[at]; }, keys, out, n);
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
