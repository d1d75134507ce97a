// Clock stamps and the pacing spin.
//
// A stamp is launched with one block per SM (the host gives it the largest dynamic shared memory, so
// that no second block fits). Each block writes its SM's cycle counter and the global nanosecond
// timer into the row that the cursor names, so that a captured graph can be replayed row after row.

__device__ __forceinline__ unsigned sm_id() {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// rows[row][which][sm][clock]: which is 0 before and 1 after, clock is 0 cycles and 1 nanoseconds.
extern "C" __global__ void stamp(long long* rows, const long long* cursor, long long which,
                                 long long slots) {
    if (threadIdx.x == 0) {
        const unsigned sm = sm_id();
        if (sm < slots) {
            // A launch outside a sample moves the cursor too; it must never leave the rows.
            const long long row = *cursor % ROWS;
            long long* cell = rows + (((row * 2 + which) * slots) + sm) * 2;
            cell[0] = clock64();
            cell[1] = static_cast<long long>(nanoseconds());
        }
    }
}

extern "C" __global__ void advance(long long* cursor) { *cursor += 1; }

// One thread keeps the GPU awake but cool. It waits on the timer, not on cycles, so that its length
// does not depend on the clock it is there to steady. What it misses between two looks at the timer
// is time in which the GPU ran another process: it is added up for whoever asks.
extern "C" __global__ void spin(long long wait_ns, long long* away_ns) {
    const unsigned long long end = nanoseconds() + static_cast<unsigned long long>(wait_ns);
    unsigned long long last = nanoseconds();
    while (last < end) {
        __nanosleep(200);
        const unsigned long long now = nanoseconds();
        if (now - last > AWAY_NS) {
            *away_ns += static_cast<long long>(now - last);
        }
        last = now;
    }
}
