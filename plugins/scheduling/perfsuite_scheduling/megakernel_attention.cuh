// The attention of megakernel.cu: one token, a cache of keys and values, in pieces.
#pragma once

#include "megakernel.cuh"

// Turns a pair of a head's values, `SIDE / 2` apart, by the position's angle. turn: cosines, sines.
__device__ float turned(const float* head, const float* turn, int place) {
    const int pair = place % (SIDE / 2);
    const float c = turn[pair], s = turn[SIDE / 2 + pair];
    const float first = head[pair], second = head[pair + SIDE / 2];
    return place < SIDE / 2 ? first * c - second * s : second * c + first * s;
}

__device__ void add_products(float (&sums)[GROUP], const Shared& shared, uint4 keys, int place) {
    const unsigned pairs[4] = {keys.x, keys.y, keys.z, keys.w};
    #pragma unroll
    for (int group = 0; group < GROUP; ++group) {
        const float* query = shared.queries[group] + place;
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[group] += low(pairs[i]) * query[2 * i] + high(pairs[i]) * query[2 * i + 1];
        }
    }
}

// One piece of the context for the heads that share a head of keys and values.
__device__ void attend(int head, int piece, bf16* keys, bf16* values, const float* turn,
                       Scratch* scratch, Shared& shared) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int first = piece * PIECE, count = min(PIECE, CONTEXT - first);
    bf16* key = keys + ((long long)head * CONTEXT + first) * SIDE;
    bf16* value = values + ((long long)head * CONTEXT + first) * SIDE;
    if (thread < GROUP * SIDE) {
        // Scores are taken to the power of two: 1 / sqrt(64) * log2(e).
        const float* from = scratch->qkv + (head * GROUP + thread / SIDE) * SIDE;
        shared.queries[thread / SIDE][thread % SIDE] =
            turned(from, turn, thread % SIDE) * 0.125f * 1.44269504f;
    } else if (thread < GROUP * SIDE + SIDE && first + count == CONTEXT) {
        // The new position is the last of the cache.
        const int place = thread % SIDE;
        const float* from = scratch->qkv + HIDDEN + head * SIDE;
        key[(count - 1) * SIDE + place] = narrow(turned(from, turn, place));
        value[(count - 1) * SIDE + place] = narrow(from[KV + place]);
    }
    __syncthreads();
    // Eight lanes have a position's 64 values, eight each.
    const int side = lane % 8 * 8;
    for (int place = thread / 8; place < PIECE; place += THREADS / 8) {
        float sums[GROUP] = {};
        if (place < count) {
            const uint4 got = *reinterpret_cast<const uint4*>(key + place * SIDE + side);
            add_products(sums, shared, got, side);
        }
        #pragma unroll
        for (int group = 0; group < GROUP; ++group) {
            #pragma unroll
            for (int step = 1; step < 8; step *= 2) {
                sums[group] += __shfl_xor_sync(0xffffffffu, sums[group], step);
            }
            if (lane % 8 == 0) {
                shared.scores[group][place] = place < count ? sums[group] : LOWEST;
            }
        }
    }
    __syncthreads();
    if (warp < GROUP) {
        float largest = LOWEST, sum = 0.0f;
        #pragma unroll
        for (int place = lane; place < PIECE; place += 32) {
            largest = fmaxf(largest, shared.scores[warp][place]);
        }
        #pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        }
        #pragma unroll
        for (int place = lane; place < PIECE; place += 32) {
            const float power = exp2f(shared.scores[warp][place] - largest);
            shared.scores[warp][place] = power;
            sum += power;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            scratch->weight[head * GROUP + warp][piece] = make_float2(largest, sum);
        }
    }
    __syncthreads();
    float sums[GROUP][8] = {};
    for (int place = thread / 8; place < count; place += THREADS / 8) {
        const uint4 got = *reinterpret_cast<const uint4*>(value + place * SIDE + side);
        const unsigned pairs[4] = {got.x, got.y, got.z, got.w};
        #pragma unroll
        for (int group = 0; group < GROUP; ++group) {
            const float power = shared.scores[group][place];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[group][2 * i] += power * low(pairs[i]);
                sums[group][2 * i + 1] += power * high(pairs[i]);
            }
        }
    }
    #pragma unroll
    for (int group = 0; group < GROUP; ++group) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            float sum = sums[group][i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 8);
            sum += __shfl_xor_sync(0xffffffffu, sum, 16);
            if (lane < 8) shared.values[warp][group][side + i] = sum;
        }
    }
    __syncthreads();
    if (thread < GROUP * SIDE) {
        float sum = 0.0f;
        #pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            sum += shared.values[other][thread / SIDE][thread % SIDE];
        }
        scratch->attended[head * GROUP + thread / SIDE][piece][thread % SIDE] = sum;
    }
    __syncthreads();  // the next piece writes what this one reads
}

// Leaves the heads' results in shared memory: the pieces' sums, weighted by their exponentials.
__device__ void join_pieces(const Scratch* scratch, Shared& shared) {
    if (threadIdx.x < HEADS) {
        const int head = threadIdx.x;
        float largest = LOWEST, sum = 0.0f;
        for (int piece = 0; piece < PIECES; ++piece) {
            largest = fmaxf(largest, scratch->weight[head][piece].x);
        }
        for (int piece = 0; piece < PIECES; ++piece) {
            const float2 weight = scratch->weight[head][piece];
            const float power = exp2f(weight.x - largest);
            shared.share[head][piece] = power;
            sum += power * weight.y;
        }
        for (int piece = 0; piece < PIECES; ++piece) shared.share[head][piece] /= sum;
    }
    __syncthreads();
    bf16* vector = reinterpret_cast<bf16*>(shared.vector);
    for (int place = threadIdx.x; place < HIDDEN; place += THREADS) {
        const int head = place / SIDE;
        float sum = 0.0f;
        #pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            sum += shared.share[head][piece] * scratch->attended[head][piece][place % SIDE];
        }
        vector[place] = narrow(sum);
    }
    __syncthreads();
}
