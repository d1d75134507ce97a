// Instructions that CUDA C++ has no name for, as packs' kernels take them: #include <ptx.cuh>.
// PTX ISA 9.7: "mbarrier", "cp.async.bulk", "ldmatrix", "mma", "wgmma".

__device__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Bulk copies see barriers through the async proxy: after their initialization and before a
// __syncthreads().
__device__ void barriers_ready() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and as many bytes as copies will report to this barrier.
__device__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Wait for the end of the phase with this parity: 0, 1, 0, ... A fresh barrier is in phase 0, and
// the one before it, of parity 1, counts as ended.
__device__ void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n"
                     ".reg .pred ended;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, ended;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

// Where one is in a ring of slots: how often it was gone round decides the parity of a phase.
template <int COUNT>
struct Place {
    unsigned slot = 0;
    unsigned parity = 0;

    __device__ void advance()
    {
        if (++slot == COUNT) {
            slot = 0;
            parity ^= 1;
        }
    }
};

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

__device__ void copy_box(const TensorMap& map, unsigned to, unsigned barrier, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

__device__ void load_fragments(unsigned (&fragments)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
                 : "r"(address)
                 : "memory");
}

// The same of rows that run along n: mma.sync wants b's columns together.
__device__ void load_turned(unsigned (&fragments)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
                 : "r"(address)
                 : "memory");
}

__device__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats as bf16, the first one low.
__device__ unsigned narrow(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ unsigned short narrow(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ void store_pair(unsigned short* c, float low, float high) {
    *reinterpret_cast<unsigned*>(c) = narrow(low, high);
}

// What mma leaves of fragments of 16 x 8, to a row-major matrix.
template <int DOWN, int ACROSS>
__device__ void store(const float (&sums)[DOWN][ACROSS][4], unsigned short* c, int row, int column,
                      int m, int n) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < DOWN; ++i) {
        #pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            const int y = row + i * 16 + lane / 4, x = column + j * 8 + lane % 4 * 2;
            unsigned short* to = c + (long long)y * n + x;
            if (x < n && y < m) {
                store_pair(to, sums[i][j][0], sums[i][j][1]);
            }
            if (x < n && y + 8 < m) {
                store_pair(to + 8LL * n, sums[i][j][2], sums[i][j][3]);
            }
        }
    }
}

// A group may be empty: counting groups then stays right behind the last copy.
__device__ __forceinline__ void close_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the newest PENDING groups of this thread have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

constexpr int SUMS = 128;  // a thread's part of 64 x 256

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)

// sums = a b, plus sums if `add`: 64 x 16 times 16 x 256, of matrix descriptors. A b that is TURNED
// runs along n, else along k.
template <int TURNED>
__device__ void multiply(float (&sums)[SUMS], unsigned long long a, unsigned long long b, int add)
{
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
        "%125, %126, %127}, %128, %129, add, 1, 1, 0, %131;\n"
        "}"
        : SIXTY_FOUR(0), SIXTY_FOUR(64)
        : "l"(a), "l"(b), "r"(add), "n"(TURNED));
}

// What it leaves, to a row-major matrix. A warp has 16 rows; four lanes have row lane / 4, and that
// plus 8.
__device__ void store(const float (&sums)[SUMS], unsigned short* c, int row, int column, int m,
                      int n) {
    row += threadIdx.x % 32 / 4;
    column += threadIdx.x % 4 * 2;
    #pragma unroll
    for (int i = 0; i < SUMS / 4; ++i) {
        const int at = column + i * 8;
        unsigned short* to = c + (long long)row * n + at;
        if (at < n && row < m) store_pair(to, sums[4 * i], sums[4 * i + 1]);
        if (at < n && row + 8 < m) {
            store_pair(to + 8LL * n, sums[4 * i + 2], sums[4 * i + 3]);
        }
    }
}

template <int LEFT>
__device__ void await_multiplications() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// The compiler does not know that the sums are being written until they were awaited: here it may
// not move what reads them any further up.
__device__ void settle(float (&sums)[SUMS]) {
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}
