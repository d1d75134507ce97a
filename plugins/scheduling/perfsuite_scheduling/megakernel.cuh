// What blocks of megakernel.cu share: shapes, the barrier, and rows times a vector.
#pragma once

typedef unsigned short bf16;  // as bits

constexpr int HIDDEN = 2048, HEADS = 32, KV_HEADS = 8, SIDE = 64, FFN = 8192;
constexpr int GROUP = HEADS / KV_HEADS, KV = KV_HEADS * SIDE, QKV = HIDDEN + 2 * KV;
constexpr float EPSILON = 1e-5f, LOWEST = -1e30f;
constexpr int THREADS = 512, WARPS = THREADS / 32;

// A unit is what a warp multiplies at once: 1024 neighbouring weights of a row, four vectors of
// 16 bytes a lane. Two units are under way for each warp: 64 KiB an SM. Both numbers can be set, to
// try others.
#ifndef UNITS_AHEAD
#define UNITS_AHEAD 2
#endif
#ifndef PREFETCH_KIB
#define PREFETCH_KIB 64
#endif
constexpr int UNIT = 1024, PARTS = UNIT / 256, AHEAD = UNITS_AHEAD;
constexpr int PREFETCH_BYTES = PREFETCH_KIB << 10;

// Rows of each product that a block has at most; it has them side by side, so that its weights are
// one piece of memory.
__device__ constexpr int most(int rows) { return (rows + BLOCKS - 1) / BLOCKS; }
constexpr int QKV_UNITS = most(QKV) * (HIDDEN / UNIT), FFN_UNITS = 2 * most(FFN) * (HIDDEN / UNIT);
constexpr int DOWN_UNITS = most(HIDDEN) * (FFN / UNIT);
__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int MOST_UNITS = larger(QKV_UNITS, larger(FFN_UNITS, DOWN_UNITS));

// Attention goes over pieces of the context, a block for each head of keys and piece.
constexpr int PIECE = 128, PIECES = (CONTEXT + PIECE - 1) / PIECE;

struct Scratch {
    unsigned long long arrivals;  // never reset; all else is written before it is read
    alignas(128) float qkv[QKV];
    alignas(128) float middle[HIDDEN];                // after attention and its residual
    alignas(128) float attended[HEADS][PIECES][SIDE]; // sums of values of a piece
    alignas(128) float2 weight[HEADS][PIECES];        // largest score and sum of exponentials of it
    alignas(128) bf16 inner[FFN];
};
static_assert(sizeof(Scratch) <= SCRATCH_BYTES, "the builder's buffer is too small");

struct Shared {
    uint4 vector[FFN / 8];  // what rows are multiplied by, as bf16
    float sums[MOST_UNITS];
    float queries[GROUP][SIDE];
    float scores[GROUP][PIECE];
    float values[WARPS][GROUP][SIDE];
    float share[HEADS][PIECES];
    float parts[WARPS];
};
static_assert(sizeof(Shared) <= 48 << 10, "BLOCKS must be 16 or more");
static_assert(most(QKV) <= THREADS, "a thread has one row of these products at most");

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ float wide(bf16 value) { return __uint_as_float((unsigned)value << 16); }

__device__ bf16 narrow(float value)  // to the nearest, ties to even; no NaN comes here
{
    const unsigned bits = __float_as_uint(value);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ float warp_sum(float value) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

// Waits until all blocks have come as often as this one. 64 bits do not wrap.
__device__ void meet(unsigned long long* arrivals) {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
                     : "=l"(before) : "l"(arrivals) : "memory");
        const unsigned long long full = (before / BLOCKS + 1) * BLOCKS;
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                         : "=l"(now) : "l"(arrivals) : "memory");
        } while (now < full);
    }
    __syncthreads();
}

// Asks for memory that will be read soon, into the L2 cache; bytes must be a multiple of 16.
__device__ void prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :: "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
}

// The rows of a product that this block has: `count` from `first` on.
struct Rows {
    int first, count;
};

__device__ Rows rows_of(int rows) {
    const int block = blockIdx.x, each = rows / BLOCKS, more = rows % BLOCKS;
    return {block * each + min(block, more), each + (block < more ? 1 : 0)};
}

// Units of one or two matrices, side by side in each: the second matrix's come after the first's.
struct Units {
    const bf16 *left, *right;
    int half, count;  // of the first matrix, of both

    __device__ Units(const bf16* weights, Rows rows, int units_a_row)
        : left(weights + (long long)rows.first * units_a_row * UNIT), right(nullptr),
          half(rows.count * units_a_row), count(half) {}

    __device__ Units(const bf16* weights, const bf16* second, Rows rows, int units_a_row)
        : Units(weights, rows, units_a_row)
    {
        right = second + (long long)rows.first * units_a_row * UNIT;
        count = 2 * half;
    }

    __device__ const bf16* at(int unit) const
    {
        return (unit < half ? left : right - (long long)half * UNIT) + (long long)unit * UNIT;
    }

    __device__ void ask() const  // thread 0 of the block
    {
        prefetch(left, min(PREFETCH_BYTES, half * UNIT * 2));
        if (right != nullptr) prefetch(right, min(PREFETCH_BYTES, half * UNIT * 2));
    }
};

using Loaded = uint4[AHEAD][PARTS];

// Volatile: it is to be under way before the barrier, not when it is needed.
__device__ uint4 load_weights(const bf16* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w)
                 : "l"(__cvta_generic_to_global(from)));
    return got;
}

__device__ void load_unit(uint4 (&to)[PARTS], const bf16* from) {
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        to[part] = load_weights(from + (part * 32 + threadIdx.x % 32) * 8);
    }
}

__device__ void load_first(Loaded& loaded, const Units& units) {
    #pragma unroll
    for (int ahead = 0; ahead < AHEAD; ++ahead) {
        const int unit = threadIdx.x / 32 + ahead * WARPS;
        if (unit < units.count) load_unit(loaded[ahead], units.at(unit));
    }
}

__device__ float dot(uint4 w, uint4 v, float sum) {
    sum += low(w.x) * low(v.x);
    sum += high(w.x) * high(v.x);
    sum += low(w.y) * low(v.y);
    sum += high(w.y) * high(v.y);
    sum += low(w.z) * low(v.z);
    sum += high(w.z) * high(v.z);
    sum += low(w.w) * low(v.w);
    sum += high(w.w) * high(v.w);
    return sum;
}

// Multiplies all units of the block, whose first ones are under way, by the vector in shared
// memory; leaves a sum for each unit there. Ends with all threads of the block in step.
__device__ void multiply(Loaded& loaded, const Units& units, int units_a_row, Shared& shared) {
    const int lane = threadIdx.x % 32;
    for (int base = threadIdx.x / 32; base < units.count; base += AHEAD * WARPS) {
        #pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead) {
            const int unit = base + ahead * WARPS;
            if (unit < units.count) {
                const uint4* vector = shared.vector + unit % units_a_row * (UNIT / 8) + lane;
                float sum = 0.0f;
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    sum = dot(loaded[ahead][part], vector[part * 32], sum);
                }
                if (unit + AHEAD * WARPS < units.count) {
                    load_unit(loaded[ahead], units.at(unit + AHEAD * WARPS));
                }
                sum = warp_sum(sum);
                if (lane == 0) shared.sums[unit] = sum;
            }
        }
    }
    __syncthreads();
}

__device__ float row_sum(const Shared& shared, int row, int units_a_row) {
    float sum = 0.0f;
    for (int part = 0; part < units_a_row; ++part) {
        sum += shared.sums[row * units_a_row + part];
    }
    return sum;
}

// Leaves RMSNorm(value) * scale in shared memory; each thread has four neighbouring values.
__device__ void normalise(const float (&value)[4], const bf16* scale, Shared& shared) {
    static_assert(HIDDEN == 4 * THREADS, "four values a thread");
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 4; ++i) sum += value[i] * value[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += shared.parts[warp];
    const float factor = rsqrtf(sum / HIDDEN + EPSILON);
    bf16* vector = reinterpret_cast<bf16*>(shared.vector);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int place = 4 * threadIdx.x + i;
        vector[place] = narrow(value[i] * factor * wide(scale[place]));
    }
    __syncthreads();
}
