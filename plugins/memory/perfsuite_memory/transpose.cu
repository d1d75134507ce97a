// out[column][row] = in[row][column] for a matrix of any rows x columns, grid (columns, rows) / tile.
//
// naive, shared and padded take 32 x 32 tiles with 32 x 8 threads; swizzled 64 x 64 with 16 x 16.

constexpr int TILE = 32;
constexpr int STEP = 8;

// What one writes first: reads are coalesced, each warp writes 32 different rows.
extern "C" __global__ __launch_bounds__(TILE* STEP) void transpose_naive(
    const float* __restrict__ in, float* __restrict__ out, long long rows, long long columns) {
    const long long column = static_cast<long long>(blockIdx.x) * TILE + threadIdx.x;
    const long long row = static_cast<long long>(blockIdx.y) * TILE + threadIdx.y;
#pragma unroll
    for (int k = 0; k < TILE; k += STEP) {
        if (column < columns && row + k < rows) {
            out[column * rows + row + k] = in[(row + k) * columns + column];
        }
    }
}

// Through a tile, so that reads and writes are coalesced; PITCH 32 puts a column of the tile into
// one bank, PITCH 33 into 32 banks.
template <int PITCH>
__device__ __forceinline__ void through_tile(const float* __restrict__ in,
                                             float* __restrict__ out, long long rows,
                                             long long columns) {
    __shared__ float tile[TILE][PITCH];
    const long long top = static_cast<long long>(blockIdx.y) * TILE;
    const long long left = static_cast<long long>(blockIdx.x) * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
#pragma unroll
    for (int k = 0; k < TILE; k += STEP) {
        if (left + x < columns && top + y + k < rows) {
            tile[y + k][x] = in[(top + y + k) * columns + left + x];
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; k += STEP) {
        if (top + x < rows && left + y + k < columns) {
            out[(left + y + k) * rows + top + x] = tile[x][y + k];
        }
    }
}

extern "C" __global__ __launch_bounds__(TILE* STEP) void transpose_shared(
    const float* in, float* out, long long rows, long long columns) {
    through_tile<TILE>(in, out, rows, columns);
}

extern "C" __global__ __launch_bounds__(TILE* STEP) void transpose_padded(
    const float* in, float* out, long long rows, long long columns) {
    through_tile<TILE + 1>(in, out, rows, columns);
}

// Each thread turns 4 x 4 floats in registers, so that global and shared memory see 16-byte accesses
// only. The tile holds the result, 64 rows of 16 vectors; vector v of row r lies at v ^ (r / 4), so
// that the 8 threads of one shared-memory phase meet 8 different groups of banks, writing and
// reading. VECTORS 0: rows or columns are no multiple of 4, and vectors would be misaligned.
constexpr int WIDE = 64;
constexpr int WIDE_VECTORS = WIDE / 4;
constexpr int SIDE = 16;

__device__ __forceinline__ int swizzled(int row, int vector) {
    return row * WIDE_VECTORS + (vector ^ (row / 4));
}

__device__ __forceinline__ void fill_by_vector(float4* tile, const float* in, long long rows,
                                               long long columns, long long top, long long left) {
    const long long column = left + threadIdx.x * 4;
    float4 in_row[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const long long row = top + threadIdx.y * 4 + k;
        if (row < rows && column < columns) {
            in_row[k] = __ldcs(reinterpret_cast<const float4*>(in + row * columns + column));
        }
    }
    const int first = threadIdx.x * 4;
    tile[swizzled(first + 0, threadIdx.y)] =
        make_float4(in_row[0].x, in_row[1].x, in_row[2].x, in_row[3].x);
    tile[swizzled(first + 1, threadIdx.y)] =
        make_float4(in_row[0].y, in_row[1].y, in_row[2].y, in_row[3].y);
    tile[swizzled(first + 2, threadIdx.y)] =
        make_float4(in_row[0].z, in_row[1].z, in_row[2].z, in_row[3].z);
    tile[swizzled(first + 3, threadIdx.y)] =
        make_float4(in_row[0].w, in_row[1].w, in_row[2].w, in_row[3].w);
}

__device__ __forceinline__ void drain_by_vector(const float4* tile, float* out, long long rows,
                                                long long columns, long long top, long long left) {
    const long long column = top + threadIdx.x * 4;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int r = threadIdx.y + k * SIDE;
        if (left + r < columns && column < rows) {
            __stcs(reinterpret_cast<float4*>(out + (left + r) * rows + column),
                   tile[swizzled(r, threadIdx.x)]);
        }
    }
}

// Where rows begin anywhere, each row of the result is written from its first whole sector on, in
// vectors: a tile is skewed by up to 7 columns, for which it reads 7 rows more (out of L2, where
// the next tile's reading brings them). Written by words at their own places, 2 of 9 sectors of a
// row of the tile would be written in part.
constexpr int SECTOR = 8;
constexpr int ROWS_READ = WIDE + SECTOR - 1;
constexpr int MOST_PITCH = 73;
constexpr int ROWS_AT_ONCE = SIDE * SIDE / WIDE;
constexpr int LOADS = (ROWS_READ + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;

// Odd, so that a column of words goes to 32 banks; and two rows of the skewed result, side by side
// in a warp, never begin at the same bank in 4.
__device__ __forceinline__ int pitch_of(long long rows) { return rows % 4 == 3 ? 73 : 71; }

__device__ __forceinline__ int skew_of(long long row_of_result, long long rows) {
    return static_cast<int>(-(row_of_result * rows) & (SECTOR - 1));
}

__device__ __forceinline__ void fill_by_word(float* tile, const float* in, long long rows,
                                             long long columns, long long top, long long left) {
    const int thread = threadIdx.y * SIDE + threadIdx.x;
    const int c = thread % WIDE, first = thread / WIDE, pitch = pitch_of(rows);
    float word[LOADS] = {};
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const int r = first + k * ROWS_AT_ONCE;
        if (r < ROWS_READ && top + r < rows && left + c < columns) {
            word[k] = in[(top + r) * columns + left + c];
        }
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const int r = first + k * ROWS_AT_ONCE;
        if (r < ROWS_READ) tile[c * pitch + r] = word[k];
    }
}

__device__ __forceinline__ void drain_skewed(const float* tile, float* out, long long rows,
                                             long long columns, long long top, long long left) {
    const int pitch = pitch_of(rows);
#pragma unroll
    for (int k = 0; k < WIDE / SIDE; ++k) {
        const int r = threadIdx.y + k * SIDE;
        if (left + r >= columns) continue;
        const int skew = skew_of(left + r, rows);
        float* row = out + (left + r) * rows;
        const int x = threadIdx.x;
        if (top == 0 && x < skew && x < rows) row[x] = tile[r * pitch + x];
        const long long column = top + skew + threadIdx.x * 4;
        const float* from = tile + r * pitch + skew + threadIdx.x * 4;
        if (column + 4 <= rows) {
            const float4 four = make_float4(from[0], from[1], from[2], from[3]);
            __stcs(reinterpret_cast<float4*>(row + column), four);
        } else {
            for (int i = 0; column + i < rows; ++i) row[column + i] = from[i];
        }
    }
}

extern "C" __global__ __launch_bounds__(SIDE* SIDE) void transpose_swizzled(
    const float* __restrict__ in, float* __restrict__ out, long long rows, long long columns) {
    const long long top = static_cast<long long>(blockIdx.y) * WIDE;
    const long long left = static_cast<long long>(blockIdx.x) * WIDE;
    if constexpr (VECTORS) {
        __shared__ float4 tile[WIDE * WIDE_VECTORS];
        fill_by_vector(tile, in, rows, columns, top, left);
        __syncthreads();
        drain_by_vector(tile, out, rows, columns, top, left);
    } else {
        __shared__ float tile[WIDE * MOST_PITCH];
        fill_by_word(tile, in, rows, columns, top, left);
        __syncthreads();
        drain_skewed(tile, out, rows, columns, top, left);
    }
}
