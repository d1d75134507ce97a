// Copies one field out of n records of STRIDE floats.
//
// Neighbouring threads take neighbouring records, each thread ITEMS of them, so that enough bytes
// are in flight. With STRIDE 1 a warp's load is 128 contiguous bytes; with 8 or more it touches 32
// different sectors of 32 bytes for 4 useful bytes each. THREADS, ITEMS and STRIDE are the
// builder's; n may be any number.

struct Record {
    float x;
#if STRIDE > 1
    float others[STRIDE - 1];
#endif
};

extern "C" __global__ __launch_bounds__(THREADS) void take_field(
    const Record* __restrict__ records, float* __restrict__ field, long long n) {
    const long long first = static_cast<long long>(blockIdx.x) * (THREADS * ITEMS) + threadIdx.x;
    float value[ITEMS] = {};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const long long i = first + k * THREADS;
        if (i < n) value[k] = records[i].x;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const long long i = first + k * THREADS;
        if (i < n) field[i] = value[k];
    }
}
