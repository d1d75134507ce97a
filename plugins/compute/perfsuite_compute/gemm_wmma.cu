// c = a b in bf16 with fp32 sums, all row-major: the ladder's first rung on tensor cores. n and k are
// multiples of 8, so that rows start at multiples of 16 bytes.

#include "gemm_rows.cuh"

constexpr int TILE = 128;             // the square of c that a block makes
constexpr int THREADS = 256;
constexpr int DEEP = 32;              // gemm_wmma: columns of a in shared memory
constexpr int PITCH_A = DEEP + 8;     // padded, so that eight rows lie in different banks
constexpr int PITCH_B = TILE + 8;
constexpr int PITCH_C = 16 + 4;
constexpr int DOWN = 2, ACROSS = 4;   // squares of 16 x 16 in a warp's 32 x 64

__device__ void load_a(unsigned (&to)[4], unsigned address) {
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address), "r"(PITCH_A)
                 : "memory");
}

__device__ void load_b(unsigned (&to)[4], unsigned address) {
    asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address), "r"(PITCH_B)
                 : "memory");
}

__device__ void multiply(float (&sums)[8], const unsigned (&a)[4], const unsigned (&b)[4]) {
    asm("wmma.mma.sync.aligned.row.row.m16n16k16.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]),
          "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));
}

// wmma: a warp multiplies squares of 16 on tensor cores; what it holds of them is opaque, so that
// they go back through shared memory.
__device__ void store_square(const float (&sums)[8], float* own, bf16* c, int row, int column,
                             int m, int n) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(own);
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 "
                 "[%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(address),
                 "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]), "f"(sums[4]),
                 "f"(sums[5]), "f"(sums[6]), "f"(sums[7]), "r"(PITCH_C)
                 : "memory");
    __syncwarp();
    const int y = threadIdx.x % 32 / 2, x = threadIdx.x % 2 * 8;
    const float* from = own + y * PITCH_C + x;
    if (row + y < m && column + x < n) {
        *reinterpret_cast<uint4*>(c + (long long)(row + y) * n + column + x) =
            make_uint4(narrow(from[0], from[1]), narrow(from[2], from[3]),
                       narrow(from[4], from[5]), narrow(from[6], from[7]));
    }
    __syncwarp();  // the next square overwrites this one
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm_wmma(
    const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n, long long size_k) {
    __shared__ __align__(32) bf16 tile_a[TILE * PITCH_A];
    __shared__ __align__(32) bf16 tile_b[DEEP * PITCH_B];
    __shared__ __align__(32) float squares[THREADS / 32][16 * PITCH_C];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / 2 * 16 * DOWN, warp_column = warp % 2 * 16 * ACROSS;
    const unsigned base_a = (unsigned)__cvta_generic_to_shared(tile_a + warp_row * PITCH_A);
    const unsigned base_b = (unsigned)__cvta_generic_to_shared(tile_b + warp_column);
    uint4 next_a[2], next_b[2];

    auto fetch = [&](int start) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = threadIdx.x + i * THREADS;
            next_a[i] = eight(a, row + at / 4, m, start + at % 4 * 8, k);
            next_b[i] = eight(b, start + at / 16, k, column + at % 16 * 8, n);
        }
    };

    float sums[DOWN][ACROSS][8] = {};
    fetch(0);
    for (int start = 0; start < k; start += DEEP) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = threadIdx.x + i * THREADS;
            *reinterpret_cast<uint4*>(&tile_a[at / 4 * PITCH_A + at % 4 * 8]) = next_a[i];
            *reinterpret_cast<uint4*>(&tile_b[at / 16 * PITCH_B + at % 16 * 8]) = next_b[i];
        }
        __syncthreads();
        fetch(start + DEEP);
        #pragma unroll 1  // both parts at once take registers that spill
        for (int part = 0; part < DEEP; part += 16) {
            unsigned own_a[DOWN][4];
            #pragma unroll
            for (int y = 0; y < DOWN; ++y) {
                load_a(own_a[y], base_a + (y * 16 * PITCH_A + part) * 2);
            }
            #pragma unroll
            for (int x = 0; x < ACROSS; ++x) {
                unsigned own_b[4];  // one at a time: all four take registers that spill
                load_b(own_b, base_b + (part * PITCH_B + x * 16) * 2);
                #pragma unroll
                for (int y = 0; y < DOWN; ++y) multiply(sums[y][x], own_a[y], own_b);
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int y = 0; y < DOWN; ++y) {
        #pragma unroll
        for (int x = 0; x < ACROSS; ++x) {
            store_square(sums[y][x], squares[warp], c, row + warp_row + y * 16,
                         column + warp_column + x * 16, m, n);
        }
    }
}
