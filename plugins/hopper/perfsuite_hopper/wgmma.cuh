// wgmma m64n256k16, bf16 operands in shared memory, fp32 sums in registers: PTX ISA 9.7,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
// Macro: DESCRIPTOR, the matrix descriptor's constant fields.

constexpr int SUMS = 128;  // a thread's part of 64 x 256

__device__ unsigned long long descriptor(unsigned address)
{
    return DESCRIPTOR | ((address & 0x3FFFF) >> 4);
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)

// sums = a @ b^T, plus sums if `add`: 64 x 16 times 16 x 256.
__device__ void multiply(float (&sums)[SUMS], unsigned a, unsigned b, int add)
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
        "%125, %126, %127}, %128, %129, add, 1, 1, 0, 0;\n"
        "}"
        : SIXTY_FOUR(0), SIXTY_FOUR(64)
        : "l"(descriptor(a)), "l"(descriptor(b)), "r"(add));
}

template <int LEFT>
__device__ void await_multiplications()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// The compiler does not know that the sums are being written until they were awaited: here it may
// not move what reads them any further up.
__device__ void settle(float (&sums)[SUMS])
{
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}
