// One row times weights of 8 or 4 bits: y[o] = scale x sum over k of code[o, k] x[k], by tensor
// cores, which take the codes without a conversion. Macros: N; K, a multiple of 16, of 128 with INT4;
// INT4 for two codes a byte and a scale for each 128 (else int8 and one for each output); WARPS of a
// block. Blocks stay, one on each multiprocessor, and their warps take every so many-th outputs.
//
// A nibble c in the low bits of a bf16 of 128 is 128 + c: one instruction makes two of them. An int8
// is two nibbles as well: the upper one counts 16 times, so x does there. Hence both formats take
// the same path, and differ in the x that meets an upper nibble. Codes are stored or made unsigned:
// what 128 + c is too much (128 and, where c was signed, 8) is multiplied by x like a code, once for
// all outputs, and the sums begin there. fp32 sums are exact enough: some 60 times the result.
//
// A warp reads 512 bytes of a row at a time, 16 a lane. mma m16n8k16 multiplies 16 rows of codes by 8
// columns of x: a row here is the part of an output that four lanes have, its eight parts are rows 0
// to 7, those of a second output rows 8 to 15; column i is the x of part i. Only entries of part i
// and column i mean something: the other seven in eight are what the layout costs, and tensor cores
// have them to spare. PTX ISA, "Matrix Fragments for mma.m16n8k16".

#include <ptx.cuh>

constexpr int ROWS = 4;   // outputs that a warp takes at a time, by twos
// DEPTH is the chunks of 512 bytes of each that it has on their way: 64 KiB or more of 16 warps.
#ifdef INT4
constexpr int DEPTH = 3;
constexpr int ROW_BYTES = K / 2;
constexpr unsigned UPPER = 0x43004300u;             // stored with 8 added
constexpr unsigned ZERO_LOWER = 0xc308c308u;        // -136: what a code of 0 is multiplied as
#else
constexpr int DEPTH = 2;
constexpr int ROW_BYTES = K;
constexpr unsigned UPPER = 0x43084308u;             // two's complement: its highest bit is flipped
constexpr unsigned ZERO_LOWER = 0xc300c300u;        // -128
#endif
constexpr unsigned LOWER = 0x43004300u;             // 128, twice
constexpr unsigned ZERO_UPPER = 0xc308c308u;        // -136
constexpr int VECTORS = ROW_BYTES / 16;             // of 16 bytes in a row
constexpr int CHUNKS = (VECTORS + 31) / 32;
constexpr int GROUPS = K / 128;
static_assert(ROW_BYTES % 16 == 0, "a row of w must be whole vectors");

__device__ __forceinline__ unsigned nibbles(unsigned word, unsigned base) {
    unsigned pair;  // (word & mask) ^ base in one instruction
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(pair) : "r"(word), "n"(0x000f000f), "r"(base));
    return pair;
}

__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What x is multiplied by in byte `at` of a row, lower or upper nibble; 0 beyond the row.
__device__ __forceinline__ unsigned short x_at(const unsigned short* x, int at, bool upper) {
    if (at >= ROW_BYTES) return 0;
#ifdef INT4
    return x[at / 64 * 128 + at % 64 + (upper ? 64 : 0)];
#else
    return upper ? narrow(16.0f * __uint_as_float((unsigned)x[at] << 16)) : x[at];
#endif
}

// x as the second operand has it, a vector for each of a lane's words: bytes 0 and 2, bytes 1 and 3,
// of each first the lower nibbles. All lanes' vectors of a word are in a row.
__device__ void arrange(uint4* arranged, const unsigned short* x) {
    for (int i = threadIdx.x; i < CHUNKS * 128; i += WARPS * 32) {
        const int at = i / 128 * 512 + i % 32 * 16 + i / 32 % 4 * 4;
        unsigned pairs[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            pairs[j] = x_at(x, at + j / 2, j % 2) | (unsigned)x_at(x, at + j / 2 + 2, j % 2) << 16;
        }
        arranged[i] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
}

struct Cursor {
    int row;
    int chunk;

    __device__ __forceinline__ void advance(int stride)
    {
        if (++chunk == CHUNKS) {
            chunk = 0;
            row += stride;
        }
    }
};

struct Chunk {
    uint4 codes[ROWS];
    float scales[ROWS];
};

__device__ __forceinline__ void load(Chunk& to, const uint4* w, const float* scale, Cursor from) {
    const int lane = threadIdx.x % 32, vector = from.chunk * 32 + lane;
    if (from.row >= N || vector >= VECTORS) return;  // x is 0 beyond a row, whatever is in `to`
    w += (long long)from.row * VECTORS + vector;
    scale += from.row * GROUPS + vector / 4;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (N % ROWS && from.row + i >= N) return;
        to.codes[i] = __ldcs(w + i * VECTORS);
#ifdef INT4
        to.scales[i] = __ldcs(scale + i * GROUPS);
#endif
    }
}

// Add a chunk's part of each output. A lane's entries of its own column are in every fourth lane or
// so; the others' sums mean nothing.
__device__ __forceinline__ void consume(float (&sums)[ROWS], const Chunk& chunk, const uint4* x) {
    const bool is_odd = threadIdx.x / 4 % 2;
    uint4 held[4];
    float start[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        held[i] = x[i * 32];
        multiply(start, ZERO_LOWER, ZERO_LOWER, ZERO_UPPER, ZERO_UPPER, held[i].x, held[i].y);
        multiply(start, ZERO_LOWER, ZERO_LOWER, ZERO_UPPER, ZERO_UPPER, held[i].z, held[i].w);
    }
    #pragma unroll
    for (int row = 0; row < ROWS; row += 2) {
        const uint4 &one = chunk.codes[row], &two = chunk.codes[row + 1];
        const unsigned ones[4] = {one.x, one.y, one.z, one.w};
        const unsigned twos[4] = {two.x, two.y, two.z, two.w};
        float part[4] = {start[0], start[1], start[2], start[3]};
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            multiply(part, nibbles(ones[i], LOWER), nibbles(twos[i], LOWER),
                     nibbles(ones[i] >> 4, UPPER), nibbles(twos[i] >> 4, UPPER),
                     held[i].x, held[i].y);
            multiply(part, nibbles(ones[i] >> 8, LOWER), nibbles(twos[i] >> 8, LOWER),
                     nibbles(ones[i] >> 12, UPPER), nibbles(twos[i] >> 12, UPPER),
                     held[i].z, held[i].w);
        }
#ifdef INT4
        sums[row] = fmaf(is_odd ? part[1] : part[0], chunk.scales[row], sums[row]);
        sums[row + 1] = fmaf(is_odd ? part[3] : part[2], chunk.scales[row + 1], sums[row + 1]);
#else
        sums[row] += is_odd ? part[1] : part[0];
        sums[row + 1] += is_odd ? part[3] : part[2];
#endif
    }
}

// Lane 4 i + i / 2 has the sum of part i.
__device__ __forceinline__ void store(float (&sums)[ROWS], const float* scale, unsigned short* y,
                                      int first) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        float sum = lane % 4 == lane / 8 ? sums[i] : 0.0f;
        #pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(~0u, sum, distance);
        }
#ifndef INT4
        sum *= scale[min(first + i, N - 1)];
#endif
        if (lane == i && first + i < N) y[first + i] = narrow(sum);
        sums[i] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
mixed_gemv(const unsigned short* x, const uint4* w, const float* scale, unsigned short* y) {
    __shared__ uint4 arranged[CHUNKS * 128];
    // Blocks first: what is left over for the last turn is spread over all of them.
    const int first = (threadIdx.x / 32 * gridDim.x + blockIdx.x) * ROWS;
    const int stride = gridDim.x * WARPS * ROWS;
    Cursor ahead = {first, 0}, at = {first, 0};
    Chunk ring[DEPTH] = {};
    #pragma unroll
    for (int i = 0; i < DEPTH; ++i, ahead.advance(stride)) load(ring[i], w, scale, ahead);
    arrange(arranged, x);
    __syncthreads();

    float sums[ROWS] = {};
    #pragma unroll 1
    while (at.row < N) {
        #pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            if (at.row >= N) return;
            consume(sums, ring[i], arranged + at.chunk * 128 + threadIdx.x % 32);
            load(ring[i], w, scale, ahead);
            ahead.advance(stride);
            if (at.chunk == CHUNKS - 1) store(sums, scale, y, at.row);
            at.advance(stride);
        }
    }
}
