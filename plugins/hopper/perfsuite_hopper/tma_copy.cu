// Copies of `bytes` bytes, a multiple of 16, three ways. Macros: THREADS, SLOTS, and CHUNK (bytes
// of a bulk copy).

#include <ptx.cuh>

// 16 bytes a thread and access, four under way: what is loaded waits in registers.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_vectors(const uint4* x, uint4* y, long long bytes) {
    constexpr int UNROLL = 4;
    const long long count = bytes / 16;
    const long long start = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    uint4 held[UNROLL];
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (start + i * THREADS < count) held[i] = x[start + i * THREADS];
    }
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (start + i * THREADS < count) y[start + i * THREADS] = held[i];
    }
}

// What is loaded waits in shared memory, SLOTS accesses of each thread; a thread reads back what it
// loaded itself, so that no thread waits for another.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_async(const uint4* x, uint4* y, long long bytes) {
    __shared__ uint4 slots[SLOTS][THREADS];
    const long long count = bytes / 16;
    const long long stride = (long long)gridDim.x * THREADS;
    const long long first = (long long)blockIdx.x * THREADS + threadIdx.x;

    auto load = [&](long long at, int slot) {
        if (at < count) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             shared_address(&slots[slot][threadIdx.x])),
                         "l"(x + at)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");  // an empty one keeps the count
    };

    for (int slot = 0; slot < SLOTS - 1; ++slot) load(first + slot * stride, slot);
    int slot = 0;
    for (long long at = first; at < count; at += stride) {
        load(at + (SLOTS - 1) * stride, (slot + SLOTS - 1) % SLOTS);
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        y[at] = slots[slot][threadIdx.x];
        slot = (slot + 1) % SLOTS;
    }
}

__device__ void load_chunk(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier)
{
    barrier_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ void store_chunk(unsigned char* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

// TMA copies both ways; one thread a block says so, and no register ever holds the data.
extern "C" __global__ void copy_bulk(const unsigned char* x, unsigned char* y, long long bytes) {
    extern __shared__ uint4 shared[];
    __shared__ alignas(8) unsigned long long full[SLOTS];
    if (threadIdx.x != 0) return;
    const unsigned slots = (shared_address(shared) + 127) / 128 * 128;
    const unsigned full_0 = shared_address(full);
    for (int slot = 0; slot < SLOTS; ++slot) barrier_init(full_0 + slot * 8, 1);
    barriers_ready();

    const long long first = (long long)blockIdx.x * CHUNK;
    const long long stride = (long long)gridDim.x * CHUNK;
    auto size = [&](long long at) { return (unsigned)min((long long)CHUNK, bytes - at); };

    Place<SLOTS> loading;
    long long next = first;
    for (; next < bytes && next < first + (SLOTS - 1) * stride; next += stride, loading.advance()) {
        load_chunk(slots + loading.slot * CHUNK, x + next, size(next), full_0 + loading.slot * 8);
    }
    Place<SLOTS> storing;
    for (long long at = first; at < bytes; at += stride, storing.advance()) {
        barrier_wait(full_0 + storing.slot * 8, storing.parity);
        store_chunk(y + at, slots + storing.slot * CHUNK, size(at));
        if (next < bytes) {
            // The slot to load next is that of the store before this one: it has been read.
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            load_chunk(slots + loading.slot * CHUNK, x + next, size(next),
                       full_0 + loading.slot * 8);
            next += stride;
            loading.advance();
        }
    }
    // The block's shared memory is given to another one when it ends.
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
