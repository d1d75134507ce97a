// Each warp reads its tile of 1024 words in shared memory over and over, 32 words a lane and pass,
// and each lane adds up its own. Macros: THREADS, STRIDE (1 to 32, a power of two).
//
// Lane l reads words l * STRIDE + 0, 1, ..., STRIDE - 1, then the same 32 * STRIDE words on. With
// STRIDE 1 that is row after row of 32 words, with STRIDE 32 column after column of a 32 x 32
// matrix: STRIDE lanes meet in each bank.

#include <ptx.cuh>

constexpr int LANES = 32;
constexpr int TILE = LANES * LANES;
constexpr int WARPS = THREADS / LANES;

// Volatile, or one pass would be kept in registers for all.
__device__ __forceinline__ unsigned read_word(unsigned address) {
    unsigned word;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

__device__ __forceinline__ uint4 read_vector(unsigned address) {
    uint4 v;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

struct Plain {
    static constexpr int WORDS = TILE;
    static __device__ __forceinline__ int place(int i) { return i; }
};

// A word more in each row: a column lies in 32 banks.
struct Padded {
    static constexpr int WORDS = TILE + LANES;
    static __device__ __forceinline__ int place(int i) { return i + i / LANES; }
};

// The same room, the columns of each row permuted: a column lies in 32 banks.
struct Swizzled {
    static constexpr int WORDS = TILE;
    static __device__ __forceinline__ int place(int i) { return i ^ (i / LANES % LANES); }
};

// The passes of this block: `passes` are dealt to all blocks as evenly as they go.
__device__ __forceinline__ int share(int passes) {
    return passes / gridDim.x + (blockIdx.x < passes % gridDim.x ? 1 : 0);
}

template <class Layout>
__device__ __forceinline__ void read_words(const unsigned* __restrict__ in,
                                           unsigned* __restrict__ out, int passes) {
    __shared__ __align__(16) unsigned tiles[WARPS][Layout::WORDS];
    unsigned* tile = tiles[threadIdx.x / LANES];
    const int lane = threadIdx.x % LANES;
    for (int i = lane; i < TILE; i += LANES) {
        tile[Layout::place(i)] = in[threadIdx.x / LANES * TILE + i];
    }
    __syncwarp();
    unsigned sum = 0;
    const int count = share(passes);
#pragma unroll 1
    for (int pass = 0; pass < count; ++pass) {
#pragma unroll
        for (int k = 0; k < LANES; ++k) {
            const int i = lane * STRIDE + k % STRIDE + k / STRIDE * STRIDE * LANES;
            sum += read_word(shared_address(tile + Layout::place(i)));
        }
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

extern "C" __global__ __launch_bounds__(THREADS) void read_plain(
    const unsigned* in, unsigned* out, long long passes) {
    read_words<Plain>(in, out, static_cast<int>(passes));
}

extern "C" __global__ __launch_bounds__(THREADS) void read_padded(
    const unsigned* in, unsigned* out, long long passes) {
    read_words<Padded>(in, out, static_cast<int>(passes));
}

extern "C" __global__ __launch_bounds__(THREADS) void read_swizzled(
    const unsigned* in, unsigned* out, long long passes) {
    read_words<Swizzled>(in, out, static_cast<int>(passes));
}

// The same words as with STRIDE 4, four of them in one access: eight lanes at a time are served,
// who meet no bank twice.
extern "C" __global__ __launch_bounds__(THREADS) void read_vectors(
    const unsigned* __restrict__ in, unsigned* __restrict__ out, long long passes) {
    __shared__ __align__(16) unsigned tiles[WARPS][TILE];
    unsigned* tile = tiles[threadIdx.x / LANES];
    const int lane = threadIdx.x % LANES;
    for (int i = lane; i < TILE; i += LANES) tile[i] = in[threadIdx.x / LANES * TILE + i];
    __syncwarp();
    unsigned sum = 0;
    const int count = share(static_cast<int>(passes));
#pragma unroll 1
    for (int pass = 0; pass < count; ++pass) {
#pragma unroll
        for (int k = 0; k < LANES; k += 4) {
            const uint4 v = read_vector(shared_address(tile + lane * 4 + k * LANES));
            sum += (v.x + v.y) + (v.z + v.w);
        }
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
