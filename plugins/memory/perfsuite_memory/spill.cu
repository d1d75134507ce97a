// out[p][k][l] = DEPTH * in[p][k][l] - sum over j of in[p][j][l]: lane l of a panel of 32 columns
// needs all DEPTH integers of its column twice, before the first result can be written. Lines of a
// panel lie behind each other, so that all its addresses are one and a constant. Macro: DEPTH.

constexpr int LANES = 32;
constexpr int PANEL = DEPTH * LANES;

// A thread keeps a whole column, in as many registers as the bounds leave it.
template <int THREADS>
__device__ __forceinline__ void center(const int* __restrict__ in, int* __restrict__ out,
                                       long long panels) {
    const long long panel =
        static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (panel >= panels) return;
    in += panel * PANEL + threadIdx.x % LANES;
    out += panel * PANEL + threadIdx.x % LANES;
    int x[DEPTH];
    int sum = 0;
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) x[k] = in[k * LANES];
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) sum += x[k];
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) out[k * LANES] = DEPTH * x[k] - sum;
}

// 1024 threads a block leave a thread 64 registers: most of the column goes to local memory.
extern "C" __global__ __launch_bounds__(1024) void center_spilled(const int* in, int* out,
                                                                  long long panels) {
    center<1024>(in, out, panels);
}

extern "C" __global__ __launch_bounds__(128) void center_bounded(const int* in, int* out,
                                                                 long long panels) {
    center<128>(in, out, panels);
}

// Reads the column twice instead of keeping it.
extern "C" __global__ __launch_bounds__(256) void center_twice(
    const int* __restrict__ in, int* __restrict__ out, long long panels) {
    const long long panel = static_cast<long long>(blockIdx.x) * (256 / LANES) + threadIdx.x / LANES;
    if (panel >= panels) return;
    in += panel * PANEL + threadIdx.x % LANES;
    out += panel * PANEL + threadIdx.x % LANES;
    int sum = 0;
#pragma unroll 16
    for (int k = 0; k < DEPTH; ++k) sum += in[k * LANES];
#pragma unroll 16
    for (int k = 0; k < DEPTH; ++k) out[k * LANES] = DEPTH * in[k * LANES] - sum;
}

// Four warps share a panel, a block each panel: a thread keeps a quarter of its column, and the
// quarters' sums meet in shared memory.
constexpr int PARTS = 4;
constexpr int SHARE = DEPTH / PARTS;

extern "C" __global__ __launch_bounds__(PARTS* LANES) void center_split(
    const int* __restrict__ in, int* __restrict__ out, long long panels) {
    __shared__ int sums[PARTS][LANES];
    const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
    const long long first = blockIdx.x * static_cast<long long>(PANEL) + part * SHARE * LANES + lane;
    int x[SHARE];
    int sum = 0;
#pragma unroll
    for (int k = 0; k < SHARE; ++k) x[k] = in[first + k * LANES];
#pragma unroll
    for (int k = 0; k < SHARE; ++k) sum += x[k];
    sums[part][lane] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) sum += sums[p][lane];
#pragma unroll
    for (int k = 0; k < SHARE; ++k) out[first + k * LANES] = DEPTH * x[k] - sum;
}
