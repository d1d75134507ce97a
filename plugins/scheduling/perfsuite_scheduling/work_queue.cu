// Items of unequal length, dealt to blocks in three ways. An item is THREADS values, which all take
// as many rounds as rounds[item] says. Macros: THREADS, ITEMS.

constexpr unsigned MULTIPLIER = 1664525u;
constexpr unsigned INCREMENT = 1013904223u;

__device__ void do_item(int item, const int* rounds, const unsigned* from, unsigned* to) {
    const int i = item * THREADS + threadIdx.x;
    const int count = rounds[item];
    unsigned value = from[i];
    // Not unrolled: a compiler that sees several rounds could make one of them.
    #pragma unroll 1
    for (int round = 0; round < count; ++round) value = value * MULTIPLIER + INCREMENT;
    to[i] = value;
}

// Each block takes as many neighbouring items as every other, however long they are.
extern "C" __global__ void __launch_bounds__(THREADS)
static_split(const int* rounds, const unsigned* from, unsigned* to) {
    const int share = (ITEMS + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * share;
    const int end = min(first + share, ITEMS);
    for (int item = first; item < end; ++item) do_item(item, rounds, from, to);
}

// One block an item: the GPU's own scheduler gives the next block to whatever has room.
extern "C" __global__ void __launch_bounds__(THREADS)
block_each(const int* rounds, const unsigned* from, unsigned* to) {
    do_item(blockIdx.x, rounds, from, to);
}

struct Queue {
    unsigned next;      // the item nobody has taken yet
    unsigned finished;  // blocks that found nothing left
};

// Each block takes the next item when it is done with one. The last block to find the queue empty
// sets it back for the next launch: by then every other block has taken its last ticket.
template <typename ItemOf>
__device__ __forceinline__ void work_off(Queue* queue, const int* rounds, const unsigned* from,
                                         unsigned* to, ItemOf item_of) {
    __shared__ unsigned shared_ticket;
    while (true) {
        if (threadIdx.x == 0) shared_ticket = atomicAdd(&queue->next, 1u);
        __syncthreads();
        const unsigned ticket = shared_ticket;
        __syncthreads();  // nobody may take the next ticket before all have read this one
        if (ticket >= ITEMS) break;
        do_item(item_of(ticket), rounds, from, to);
    }
    if (threadIdx.x == 0) {
        __threadfence();  // the last ticket is taken before this block counts as finished
        if (atomicAdd(&queue->finished, 1u) == gridDim.x - 1) {
            queue->next = 0;
            queue->finished = 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
atomic_queue(const int* rounds, const unsigned* from, unsigned* to, Queue* queue) {
    work_off(queue, rounds, from, to, [](unsigned ticket) { return static_cast<int>(ticket); });
}

// The same in an order of the items, the longest first: no long one is begun last.
extern "C" __global__ void __launch_bounds__(THREADS) sorted_queue(
    const int* rounds, const unsigned* from, unsigned* to, Queue* queue, const long long* order) {
    work_off(queue, rounds, from, to,
             [order](unsigned ticket) { return static_cast<int>(order[ticket]); });
}
