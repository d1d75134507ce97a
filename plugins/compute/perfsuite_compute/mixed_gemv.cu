// One row times weights of 8 or 4 bits: y[o] = scale x sum over k of code[o, k] x[k], by tensor
// cores, which take the codes without a conversion. Macros: N; K, a multiple of 64, of 128 with INT4;
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
constexpr int NIBBLES = 1;                          // of a code
constexpr unsigned UPPER = 0x43004300u;             // stored with 8 added
constexpr unsigned ZERO_LOWER = 0xc308c308u;        // -136: what a code of 0 is multiplied as
#else
constexpr int DEPTH = 2;
constexpr int NIBBLES = 2;
constexpr unsigned UPPER = 0x43084308u;             // two's complement: its highest bit is flipped
constexpr unsigned ZERO_LOWER = 0xc300c300u;        // -128
#endif
constexpr unsigned LOWER = 0x43004300u;             // 128, twice
constexpr unsigned ZERO_UPPER = 0xc308c308u;        // -136
constexpr int ROW_BYTES = K / 2 * NIBBLES;
constexpr int VECTORS = ROW_BYTES / 16;             // of 16 bytes in a row
constexpr int CHUNKS = (VECTORS + 31) / 32;
constexpr int GROUPS = K / 128;
static_assert(ROW_BYTES % 64 == 0, "a row of w must be whole steps of 64 bytes");

__device__ __forceinline__ unsigned nibbles(unsigned word, unsigned base) {
    unsigned pair;  // (word & mask) ^ base in one instruction
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(pair) : "r"(word), "n"(0x000f000f), "r"(base));
    return pair;
}

// x as the second operand has it, a vector for each of a lane's words: bytes 0 and 2, bytes 1 and 3,
// of each first the lower nibbles. All lanes' vectors of a word are in a row. By the order of codes,
// which `quantise` of mixed_gemm.py tells, what meets two codes lies side by side in x.
__device__ void arrange(uint4* arranged, const unsigned* x) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < CHUNKS * 128; i += WARPS * 32) {
        const int step = i / 128 * 8 + i % 32 / 4;  // of 64 bytes; x is 0 beyond a row
        unsigned pairs[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int at = (step * 4 + i / 32 % 4) * (16 / NIBBLES) + j / NIBBLES * 4 + i % 4;
            pairs[j] = step < ROW_BYTES / 64 ? x[at] : 0;
            if (j % NIBBLES) {
                pairs[j] = narrow(16.0f * __uint_as_float(pairs[j] << 16),
                                  16.0f * __uint_as_float(pairs[j] & 0xffff0000u));
            }
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
    const unsigned zeros[4] = {ZERO_LOWER, ZERO_LOWER, ZERO_UPPER, ZERO_UPPER};
    uint4 held[4];
    float start[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        held[i] = x[i * 32];
        multiply(start, zeros, held[i].x, held[i].y);
        multiply(start, zeros, held[i].z, held[i].w);
    }
    #pragma unroll
    for (int row = 0; row < ROWS; row += 2) {
        const unsigned* ones = &chunk.codes[row].x;
        const unsigned* twos = &chunk.codes[row + 1].x;
        float part[4] = {start[0], start[1], start[2], start[3]};
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int bits = 0; bits < 16; bits += 8) {
                const unsigned one = ones[i] >> bits, two = twos[i] >> bits;
                multiply(part, {nibbles(one, LOWER), nibbles(two, LOWER),
                                nibbles(one >> 4, UPPER), nibbles(two >> 4, UPPER)},
                         bits ? held[i].z : held[i].x, bits ? held[i].w : held[i].y);
            }
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
mixed_gemv(const unsigned* x, const uint4* w, const float* scale, unsigned short* y) {
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
