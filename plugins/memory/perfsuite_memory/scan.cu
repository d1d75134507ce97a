// An inclusive prefix sum of n int32 in one pass with decoupled look-back (Merrill and Garland,
// 2016). Blocks that stay take tiles by ticket; a ring in shared memory holds STAGES of them, so
// that tiles are on their way while the sum before an earlier one is still looked for. Each step has
// warps of its own: one thread asks for tiles (TMA), REDUCERS warps add them up, one warp publishes
// the sum and looks back, SCANNERS warps write prefix sums. Barriers in shared memory pass a tile
// on: full, summed, ready, empty.
//
// Macros: SCANNERS (at most 32), REDUCERS, VECTORS (of 16 bytes; those of a lane and tile), STAGES,
// BLOCKS (an SM) and LOOK (words of a lane that looks back). Pointers must be 16-byte aligned; n may
// be any number below 2^31. sm_90 and above.

#include "bulk.cuh"

constexpr int SEGMENT = VECTORS * 32;         // vectors of a scanner
constexpr int TILE = SCANNERS * SEGMENT * 4;  // elements
constexpr int THREADS = 32 * (2 + REDUCERS + SCANNERS);
constexpr unsigned ALL = 0xffffffffu;
// The lower half of a word of the state: 30 bits of the launch, and what the value above it is. It
// does not matter that they begin again: each launch writes every word, so that a word is of this
// launch, of the one before, or 0, which is neither kind.
constexpr unsigned SUM = 1, PREFIX = 2;

__device__ __forceinline__ Word word_of(int value, unsigned kind) {
    return static_cast<Word>(static_cast<unsigned>(value)) << 32 | kind;
}

// Relaxed: a word says whose and what it is, so that no other access need be ordered with it.
__device__ __forceinline__ void publish(Word* word, int value, unsigned kind) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(word_of(value, kind))
                 : "memory");
}

__device__ __forceinline__ Word published(const Word* word) {
    Word value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// Where in the ring a warp is, and in which turn.
struct Place {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

extern __shared__ int4 vectors[];  // the tiles of the ring

struct Ring {
    Word full[STAGES], summed[STAGES], ready[STAGES], empty[STAGES];
    int tile[STAGES];            // -1: there are no more
    int sums[STAGES][SCANNERS];  // of a scanner's segment, then of all before it
    unsigned mark;               // of this launch's words
};

__device__ __forceinline__ int4* segment(int slot, int scanner) {
    return vectors + (slot * SCANNERS + scanner) * SEGMENT;
}

// One thread's: tickets are taken in order and tiles worked on in order, so that a tile waits only
// for tiles of blocks that run. A launch takes as many tickets as there are tiles and blocks.
__device__ void load_tiles(Ring& ring, const int* x, Word* tickets, long long n) {
    const long long tiles = (n + TILE - 1) / TILE;
    Word ticket = atomicAdd(tickets, Word(1));
    const Word launch = ticket / (tiles + gridDim.x);
    const Word first = launch * (tiles + gridDim.x);
    ring.mark = static_cast<unsigned>(launch) << 2;
    for (Place to;; to.advance()) {
        const long long tile = static_cast<long long>(ticket - first);
        barrier_wait(&ring.empty[to.slot], to.parity ^ 1);  // passed in the first turn
        ring.tile[to.slot] = tile < tiles ? static_cast<int>(tile) : -1;
        if (tile >= tiles) {
            barrier_arrive(&ring.full[to.slot]);
            return;
        }
        int4* const slot = segment(to.slot, 0);
        const int count = static_cast<int>(min(static_cast<long long>(TILE), n - tile * TILE));
        const int whole = count / 4 * 4;
        // What lies behind the end is added up as it is found: no tile looks back at it.
#pragma unroll 1
        for (int i = whole; i < count; ++i) reinterpret_cast<int*>(slot)[i] = x[tile * TILE + i];
        barrier_expect(&ring.full[to.slot], whole * 4);
        if (whole > 0) load_bulk(slot, x + tile * TILE, whole * 4, &ring.full[to.slot]);
        ticket = atomicAdd(tickets, Word(1));
    }
}

__device__ void reduce_tiles(Ring& ring, int reducer) {
    const int lane = threadIdx.x % 32;
    for (Place at;; at.advance()) {
        barrier_wait(&ring.full[at.slot], at.parity);
        if (ring.tile[at.slot] < 0) return;
        for (int scanner = reducer; scanner < SCANNERS; scanner += REDUCERS) {
            const int4* const from = segment(at.slot, scanner);
            int sum = 0;
#pragma unroll
            for (int k = 0; k < VECTORS; ++k) {
                const int4 v = from[k * 32 + lane];
                sum += (v.x + v.y) + (v.z + v.w);
            }
            sum = __reduce_add_sync(ALL, sum);
            if (lane == 0) ring.sums[at.slot][scanner] = sum;
        }
        if (lane == 0) barrier_arrive(&ring.summed[at.slot]);
    }
}

// Adds the value of the lane `step` below, where there is one: shfl says so by itself.
__device__ __forceinline__ int add_lower(int value, int step) {
    int sum = value;
    asm volatile("{\n.reg .pred has;\n.reg .b32 lower;\n"
                 "shfl.sync.up.b32 lower|has, %1, %2, 0, 0xffffffff;\n"
                 "@has add.s32 %0, %0, lower;\n}"
                 : "+r"(sum)
                 : "r"(value), "r"(step));
    return sum;
}

__device__ __forceinline__ int inclusive(int value) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) value = add_lower(value, step);
    return value;
}

// Adds a lane's share of the values from `at` back to the nearest prefix, 32 * LOOK words at once;
// returns false where one of them is not published yet. What is at `own` and before is known.
__device__ __forceinline__ bool add_window(const Word* words, int at, unsigned mark, int own,
                                           int sum_to_own, int& before, bool& found) {
    const int lane = threadIdx.x % 32;
    Word seen[LOOK];
#pragma unroll
    for (int w = 0; w < LOOK; ++w) {
        const int index = at - 32 * w - lane;
        seen[w] = index > own ? published(words + index) : word_of(sum_to_own, mark | PREFIX);
    }
    int sum = 0;
    found = false;
#pragma unroll
    for (int w = 0; w < LOOK; ++w) {
        const unsigned kind = static_cast<unsigned>(seen[w]) - mark;
        const unsigned prefixes = __ballot_sync(ALL, kind == PREFIX);
        const unsigned missing = __ballot_sync(ALL, kind != PREFIX && kind != SUM);
        const unsigned nearer = prefixes ^ (prefixes - 1);  // and the nearest prefix; or all
        if (found) continue;
        if (missing & nearer) return false;
        if (nearer >> lane & 1) sum += static_cast<int>(seen[w] >> 32);
        found = prefixes != 0;
    }
    before += sum;
    return true;
}

// One warp's: `own` is the last tile of this block, whose prefix it knows.
__device__ void look_back(Ring& ring, Word* words) {
    const int lane = threadIdx.x % 32;
    int own = -1, sum_to_own = 0;
    for (Place at;; at.advance()) {
        barrier_wait(&ring.full[at.slot], at.parity);
        const int tile = ring.tile[at.slot];
        if (tile < 0) return;
        const unsigned mark = ring.mark;
        barrier_wait(&ring.summed[at.slot], at.parity);
        const int sum = lane < SCANNERS ? ring.sums[at.slot][lane] : 0;
        const int total = __reduce_add_sync(ALL, sum);
        if (lane == 0) publish(words + tile, total, mark | SUM);
        const int within = inclusive(sum) - sum;
        int before = 0;
        bool found = false;
        for (int from = tile - 1; !found;) {
            if (add_window(words, from, mark, own, sum_to_own, before, found)) from -= 32 * LOOK;
        }
        before = __reduce_add_sync(ALL, before);
        own = tile;
        sum_to_own = before + total;
        if (lane == 0) publish(words + tile, sum_to_own, mark | PREFIX);
        if (lane < SCANNERS) {
            ring.sums[at.slot][lane] = before + within;
            barrier_arrive(&ring.ready[at.slot]);
        }
    }
}

// Leaves in out[0] to out[3] what of them lies before the end.
__device__ __forceinline__ void store_some(int* out, int4 v, long long left) {
    if (left >= 4) __stcs(reinterpret_cast<int4*>(out), v);
    else if (left > 0) {
        out[0] = v.x;
        if (left > 1) out[1] = v.y;
        if (left > 2) out[2] = v.z;
    }
}

__device__ void scan_tiles(Ring& ring, int scanner, int* out, long long n) {
    const int lane = threadIdx.x % 32;
    for (Place at;; at.advance()) {
        barrier_wait(&ring.full[at.slot], at.parity);
        const long long tile = ring.tile[at.slot];
        if (tile < 0) return;
        barrier_wait(&ring.ready[at.slot], at.parity);
        int before = ring.sums[at.slot][scanner];
        const int4* const from = segment(at.slot, scanner);
        int4 v[VECTORS];
        int through[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            v[k] = from[k * 32 + lane];
            v[k].y += v[k].x;
            v[k].z += v[k].y;
            v[k].w += v[k].z;
            through[k] = inclusive(v[k].w);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&ring.empty[at.slot]);  // the rest is done in registers
        const long long first = ((tile * SCANNERS + scanner) * SEGMENT + lane) * 4;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            const int more = before + through[k] - v[k].w;
            before += __shfl_sync(ALL, through[k], 31);
            v[k] = make_int4(v[k].x + more, v[k].y + more, v[k].z + more, v[k].w + more);
            store_some(out + first + k * 128, v[k], n - first - k * 128);
        }
    }
}

// The state is a ticket, then a word a tile; it is zero before the first launch only. All launches
// that share it have as many elements and blocks, and follow one another.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void scan(const int* x, int* out,
                                                                  Word* state, long long n) {
    __shared__ Ring ring;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(&ring.full[slot], 1);
            barrier_init(&ring.summed[slot], REDUCERS);
            barrier_init(&ring.ready[slot], SCANNERS);
            barrier_init(&ring.empty[slot], SCANNERS);
        }
        barriers_ready();
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp == 0 && threadIdx.x == 0) load_tiles(ring, x, state, n);
    if (warp == 1) look_back(ring, state + 1);
    if (warp >= 2 && warp < 2 + REDUCERS) reduce_tiles(ring, warp - 2);
    if (warp >= 2 + REDUCERS) scan_tiles(ring, warp - 2 - REDUCERS, out, n);
}
