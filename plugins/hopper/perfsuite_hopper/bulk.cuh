// Barriers in shared memory and bulk copies (TMA): PTX ISA 9.7, "mbarrier" and "cp.async.bulk".

__device__ unsigned shared_address(const void* pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ void barrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Bulk copies see barriers through the async proxy: after their initialization and before a
// __syncthreads().
__device__ void barriers_ready()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ void barrier_arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and as many bytes as copies will report to this barrier.
__device__ void barrier_expect(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Wait for the end of the phase with this parity: 0, 1, 0, ... A fresh barrier is in phase 0, and
// the one before it, of parity 1, counts as ended.
__device__ void barrier_wait(unsigned barrier, unsigned parity)
{
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
