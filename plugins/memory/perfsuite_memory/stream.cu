// The STREAM operations with 16-byte accesses and UNROLL of them in flight per thread and input.
//
// THREADS, UNROLL and SCALAR come from the builder. Pointers must be 16-byte aligned, as an
// allocation is; n may be any number. Loads and stores carry no cache hint: on an H200 a copy with
// streaming loads (evict first) is 1-2 % slower.

constexpr int TILE = THREADS * UNROLL * 4;  // elements per block and step

template <int INPUTS>
struct Arrays {
    const float* __restrict__ in[INPUTS > 0 ? INPUTS : 1];

    // Returns vector i of input j, or zeros where there is no such input.
    __device__ __forceinline__ float4 vector(int j, long long i) const {
        if (j >= INPUTS) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return reinterpret_cast<const float4*>(in[j < INPUTS ? j : 0])[i];
    }
    __device__ __forceinline__ float word(int j, long long i) const {
        return j < INPUTS ? in[j < INPUTS ? j : 0][i] : 0.0f;
    }
};

// One whole tile in registers: all its loads are issued before the first use.
template <int INPUTS>
struct Tile {
    float4 x[UNROLL], y[UNROLL];

    __device__ __forceinline__ Tile(const Arrays<INPUTS>& arrays, long long first) {
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            x[k] = arrays.vector(0, first + k * THREADS);
            y[k] = arrays.vector(1, first + k * THREADS);
        }
    }
};

// out[i] = op(in[0][i], in[1][i]), one tile per block; the last block takes what is no whole tile.
template <int INPUTS, class Op>
__device__ __forceinline__ void map(Arrays<INPUTS> arrays, float* __restrict__ out, long long n,
                                    Op op) {
    const long long whole = n / TILE;
    if (blockIdx.x >= whole) {
#pragma unroll 1
        for (long long i = whole * TILE + threadIdx.x; i < n; i += THREADS) {
            out[i] = op(arrays.word(0, i), arrays.word(1, i));
        }
        return;
    }
    const long long first = static_cast<long long>(blockIdx.x) * (TILE / 4) + threadIdx.x;
    const Tile<INPUTS> tile(arrays, first);
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
        const float4 x = tile.x[k], y = tile.y[k];
        reinterpret_cast<float4*>(out)[first + k * THREADS] =
            make_float4(op(x.x, y.x), op(x.y, y.y), op(x.z, y.z), op(x.w, y.w));
    }
}

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[THREADS / 32];
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    __syncthreads();  // a second call must not overtake readers of the first
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < THREADS / 32; ++warp) value += warps[warp];
    }
    return value;  // right in thread 0
}

// The block that finishes last adds the partial sums, in a fixed order, so that one launch does it
// all and the result does not depend on the order in which blocks finish.
__device__ __forceinline__ void finish(float sum, float* out, float* partials,
                                       unsigned int* finished) {
    __shared__ bool is_last;
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    float total = 0.0f;
#pragma unroll 1
    for (int block = threadIdx.x; block < gridDim.x; block += THREADS) {
        total += __ldcg(partials + block);
    }
    total = block_sum(total);
    if (threadIdx.x == 0) *out = total;
}

// sum of op(in[0][i], in[1][i]): resident blocks stride over the whole tiles, the last takes the
// rest.
template <int INPUTS, class Op>
__device__ __forceinline__ float reduce(Arrays<INPUTS> arrays, long long n, Op op) {
    const long long whole = n / TILE;
    float4 sum = {};
    for (long long at = blockIdx.x; at < whole; at += gridDim.x) {
        const Tile<INPUTS> tile(arrays, at * (TILE / 4) + threadIdx.x);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            sum.x += op(tile.x[k].x, tile.y[k].x);
            sum.y += op(tile.x[k].y, tile.y[k].y);
            sum.z += op(tile.x[k].z, tile.y[k].z);
            sum.w += op(tile.x[k].w, tile.y[k].w);
        }
    }
    float total = (sum.x + sum.y) + (sum.z + sum.w);
    if (blockIdx.x == gridDim.x - 1) {
#pragma unroll 1
        for (long long i = whole * TILE + threadIdx.x; i < n; i += THREADS) {
            total += op(arrays.word(0, i), arrays.word(1, i));
        }
    }
    return total;
}

#define MAP_1(NAME, FORMULA)                                                                   \
    extern "C" __global__ __launch_bounds__(THREADS) void NAME(const float* x, float* out,     \
                                                               long long n) {                  \
        map(Arrays<1>{{x}}, out, n, [](float x, float) { return FORMULA; });                   \
    }
#define MAP_2(NAME, FORMULA)                                                                   \
    extern "C" __global__ __launch_bounds__(THREADS) void NAME(const float* x, const float* y, \
                                                               float* out, long long n) {      \
        map(Arrays<2>{{x, y}}, out, n, [](float x, float y) { return FORMULA; });              \
    }

MAP_1(stream_copy, x)
MAP_1(stream_scale, SCALAR* x)
MAP_2(stream_add, x + y)
MAP_2(stream_triad, x + SCALAR * y)

extern "C" __global__ __launch_bounds__(THREADS) void stream_init(float* out, long long n) {
    map(Arrays<0>{}, out, n, [](float, float) { return SCALAR; });
}

extern "C" __global__ __launch_bounds__(THREADS) void stream_read(
    const float* x, float* out, float* partials, unsigned int* finished, long long n) {
    const float sum = reduce(Arrays<1>{{x}}, n, [](float x, float) { return x; });
    finish(sum, out, partials, finished);
}

extern "C" __global__ __launch_bounds__(THREADS) void stream_dot(
    const float* x, const float* y, float* out, float* partials, unsigned int* finished,
    long long n) {
    const float sum = reduce(Arrays<2>{{x, y}}, n, [](float x, float y) { return x * y; });
    finish(sum, out, partials, finished);
}
