// Kernels whose time is their count of fused multiply-adds.

// out = y after an even number of steps a = m a + x with m = -1: every step depends on the last.
extern "C" __global__ void chain(const float* x, const float* y, float* out, long long n,
                                 long long trips, float m) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  float step = x[i], a = y[i];
#pragma unroll 1
  for (long long trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int k = 0; k < 8; ++k) a = fmaf(a, m, step);
  }
  out[i] = a;
}
