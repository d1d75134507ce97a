// c = a b in bf16 with fp32 sums, all row-major: four rungs of a ladder, from one thread an element
// to tensor cores. a is m x k, b is k x n; n and k are multiples of 8, so that rows start at
// multiples of 16 bytes.

typedef unsigned short bf16;

__device__ float wide(bf16 value)
{
    return __uint_as_float((unsigned)value << 16);
}

__device__ unsigned narrow(float low, float high)
{
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Eight values of a row-major matrix, or zeros beyond its end.
__device__ uint4 eight(const bf16* from, int row, int rows, int column, int columns)
{
    const bool inside = row < rows && column < columns;
    return inside ? *reinterpret_cast<const uint4*>(from + (long long)row * columns + column)
                  : make_uint4(0, 0, 0, 0);
}

// What is written first. Neighbouring threads take neighbouring columns, so b is coalesced.
extern "C" __global__ void gemm_loop(const bf16* a, const bf16* b, bf16* c, long long size_m,
                                     long long size_n, long long size_k)
{
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) {
        return;
    }
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        sum += wide(a[(long long)row * k + i]) * wide(b[(long long)i * n + column]);
    }
    c[(long long)row * n + column] = (bf16)narrow(sum, 0.0f);
}

constexpr int SQUARE = 32;

// Tiles in shared memory: each value from global memory serves 32 elements of c.
extern "C" __global__ void __launch_bounds__(SQUARE * SQUARE)
gemm_shared(const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n,
            long long size_k)
{
    __shared__ float tile_a[SQUARE][SQUARE], tile_b[SQUARE][SQUARE];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * SQUARE + x, row = blockIdx.y * SQUARE + y;
    float sum = 0.0f;
    for (int start = 0; start < k; start += SQUARE) {
        const bool in_a = row < m && start + x < k, in_b = start + y < k && column < n;
        tile_a[y][x] = in_a ? wide(a[(long long)row * k + start + x]) : 0.0f;
        tile_b[y][x] = in_b ? wide(b[(long long)(start + y) * n + column]) : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < SQUARE; ++i) {
            sum += tile_a[y][i] * tile_b[i][x];
        }
        __syncthreads();
    }
    if (row < m && column < n) {
        c[(long long)row * n + column] = (bf16)narrow(sum, 0.0f);
    }
}

constexpr int TILE = 128;     // the square of c that a block of the last two rungs makes
constexpr int THREADS = 256;
constexpr int SIDE = 16;      // gemm_register: SIDE x SIDE threads of OWN x OWN sums,
constexpr int OWN = 8;
constexpr int STEP = 16;      // and so many columns of a in shared memory
constexpr int HALF = TILE / 2;

// The eight values of `from`, the first in the low half of its first word.
__device__ void widen(float (&to)[8], uint4 from)
{
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Sums in registers: each read from shared memory serves eight elements of c.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_register(const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n,
              long long size_k)
{
    // a is turned on its way in, so that a thread reads both operands as vectors of four.
    __shared__ float tile_a[STEP][TILE + 4], tile_b[STEP][TILE];
    const int m = (int)size_m, n = (int)size_n, k = (int)size_k;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int row_a = threadIdx.x / 2, column_a = threadIdx.x % 2 * 8;
    const int row_b = threadIdx.x / 16, column_b = threadIdx.x % 16 * 8;
    const int across = threadIdx.x % SIDE * 4, down = threadIdx.x / SIDE * 4;
    float sums[OWN][OWN] = {};
    uint4 next_a = eight(a, row + row_a, m, column_a, k);
    uint4 next_b = eight(b, row_b, k, column + column_b, n);
    for (int start = 0; start < k; start += STEP) {
        float values[8];
        widen(values, next_a);
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            tile_a[column_a + i][row_a] = values[i];
        }
        widen(values, next_b);
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            tile_b[row_b][column_b + i] = values[i];
        }
        __syncthreads();
        next_a = eight(a, row + row_a, m, start + STEP + column_a, k);
        next_b = eight(b, start + STEP + row_b, k, column + column_b, n);
        #pragma unroll
        for (int i = 0; i < STEP; ++i) {
            float own_a[OWN], own_b[OWN];
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                *reinterpret_cast<float4*>(&own_a[half * 4]) =
                    *reinterpret_cast<const float4*>(&tile_a[i][half * HALF + down]);
                *reinterpret_cast<float4*>(&own_b[half * 4]) =
                    *reinterpret_cast<const float4*>(&tile_b[i][half * HALF + across]);
            }
            #pragma unroll
            for (int y = 0; y < OWN; ++y) {
                #pragma unroll
                for (int x = 0; x < OWN; ++x) {
                    sums[y][x] += own_a[y] * own_b[x];
                }
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int y = 0; y < OWN; ++y) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int to_row = row + y / 4 * HALF + down + y % 4;
            const int to_column = column + half * HALF + across;
            if (to_row < m && to_column < n) {
                const float* from = &sums[y][half * 4];
                *reinterpret_cast<uint2*>(c + (long long)to_row * n + to_column) =
                    make_uint2(narrow(from[0], from[1]), narrow(from[2], from[3]));
            }
        }
    }
}

constexpr int DEEP = 32;              // gemm_wmma: columns of a in shared memory
constexpr int PITCH_A = DEEP + 8;     // padded, so that eight rows lie in different banks
constexpr int PITCH_B = TILE + 8;
constexpr int PITCH_C = 16 + 4;
constexpr int DOWN = 2, ACROSS = 4;   // squares of 16 x 16 in a warp's 32 x 64

__device__ void load_a(unsigned (&to)[4], unsigned address)
{
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address), "r"(PITCH_A)
                 : "memory");
}

__device__ void load_b(unsigned (&to)[4], unsigned address)
{
    asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address), "r"(PITCH_B)
                 : "memory");
}

__device__ void multiply(float (&sums)[8], const unsigned (&a)[4], const unsigned (&b)[4])
{
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
                             int m, int n)
{
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_wmma(const bf16* a, const bf16* b, bf16* c, long long size_m, long long size_n,
          long long size_k)
{
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
                for (int y = 0; y < DOWN; ++y) {
                    multiply(sums[y][x], own_a[y], own_b);
                }
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
