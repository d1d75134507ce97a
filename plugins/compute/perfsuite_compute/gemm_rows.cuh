// What the ladder's kernels without cp.async have in common.

#include <ptx.cuh>

typedef unsigned short bf16;

// Eight values of a row-major matrix, or zeros beyond its end.
__device__ uint4 eight(const bf16* from, int row, int rows, int column, int columns) {
    const bool inside = row < rows && column < columns;
    return inside ? *reinterpret_cast<const uint4*>(from + (long long)row * columns + column)
                  : make_uint4(0, 0, 0, 0);
}
