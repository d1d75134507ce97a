// Reads an array over and over, however often it takes to read a fixed amount, 16 bytes a thread
// and access, past L1. Macros: THREADS, UNROLL.

constexpr int TILE = THREADS * UNROLL;  // vectors that a block reads at once

// L1 is passed by (cache at global level): it would serve what a block reads twice.
__device__ __forceinline__ float4 read_past_l1(const float4* at) {
    return __ldcg(at);
}

// Blocks take tile after tile of all passes in turn, so that neighbouring blocks read neighbouring
// tiles and none has more than one tile more than another. A thread's sum is the sum of its places
// in the tiles that its block took.
extern "C" __global__ __launch_bounds__(THREADS, 6) void read_passes(
    const float4* __restrict__ x, float* __restrict__ out, long long vectors, long long passes) {
    const int tiles = static_cast<int>((vectors + TILE - 1) / TILE);
    const int turns = tiles * static_cast<int>(passes);
    const int step = gridDim.x % tiles;
    int tile = blockIdx.x % tiles;
    float4 sum = {};
#pragma unroll 1
    for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        const long long first = static_cast<long long>(tile) * TILE + threadIdx.x;
        float4 v[UNROLL] = {};
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            if (first + k * THREADS < vectors) v[k] = read_past_l1(x + first + k * THREADS);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            sum.x += v[k].x;
            sum.y += v[k].y;
            sum.z += v[k].z;
            sum.w += v[k].w;
        }
        tile += step;
        if (tile >= tiles) tile -= tiles;
    }
    out[blockIdx.x * THREADS + threadIdx.x] = (sum.x + sum.y) + (sum.z + sum.w);
}
