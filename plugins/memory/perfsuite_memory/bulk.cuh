// Barriers in shared memory and bulk copies into it (TMA), sm_90 and above: PTX ISA 9.7, "mbarrier"
// and "cp.async.bulk".

#pragma once

typedef unsigned long long Word;

__device__ __forceinline__ unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void barrier_init(Word* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

// Bulk copies see barriers through the async proxy: after their initialization and before a
// __syncthreads().
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Word* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void barrier_expect(Word* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Waits for the end of the phase with this parity: 0, 1, 0, ... A fresh barrier is in phase 0, and
// the one before it, of parity 1, counts as ended.
__device__ __forceinline__ void barrier_wait(Word* barrier, unsigned parity) {
    asm volatile("{\n.reg .pred passed;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n"
                 "@!passed bra AGAIN;\n}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

// Both addresses and the size are multiples of 16 bytes.
__device__ __forceinline__ void load_bulk(int4* to, const int* from, unsigned bytes, Word* full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
}
