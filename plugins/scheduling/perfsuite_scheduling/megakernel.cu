// One decode layer of a Llama-shaped model for one token, in one kernel of one block an SM. Blocks
// meet at a barrier between phases; before each meeting they ask for the weights that come next,
// which depend on nothing, so that memory goes on working while blocks wait.
// Macros: BLOCKS (blocks, all on the GPU at once), CONTEXT (positions, the new one included),
// SCRATCH_BYTES.

#include "megakernel.cuh"
#include "megakernel_attention.cuh"

// x: the token's values; qkv [3072, 2048], out [2048, 2048], gate_up [2 * 8192, 2048],
// down [2048, 8192]; norms [2, 2048]; keys, values [8, CONTEXT, 64]; turn: 32 cosines, 32 sines.
extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_layer(
    const bf16* x, const bf16* qkv, const bf16* out, const bf16* gate_up, const bf16* down,
    const bf16* norms, bf16* keys, bf16* values, const float* turn, Scratch* scratch, bf16* y) {
    __shared__ Shared shared;
    const int thread = threadIdx.x;
    const Rows qkv_rows = rows_of(QKV), rows = rows_of(HIDDEN), ffn_rows = rows_of(FFN);
    Loaded loaded;

    const Units to_qkv(qkv, qkv_rows, HIDDEN / UNIT);
    load_first(loaded, to_qkv);
    if (thread == 0 && blockIdx.x < KV_HEADS * PIECES) {
        const int first = blockIdx.x % PIECES * PIECE;
        const long long start = ((long long)(blockIdx.x / PIECES) * CONTEXT + first) * SIDE;
        const int bytes = min(PIECE, CONTEXT - first) * SIDE * 2;
        prefetch(keys + start, bytes);
        prefetch(values + start, bytes);
    }
    float value[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = wide(x[4 * thread + i]);
    normalise(value, norms, shared);
    multiply(loaded, to_qkv, HIDDEN / UNIT, shared);
    if (thread < qkv_rows.count) {
        scratch->qkv[qkv_rows.first + thread] = row_sum(shared, thread, HIDDEN / UNIT);
    }

    // Asked for now: attention is short and leaves memory idle.
    const Units to_out(out, rows, HIDDEN / UNIT);
    const Units to_ffn(gate_up, gate_up + (long long)FFN * HIDDEN, ffn_rows, HIDDEN / UNIT);
    load_first(loaded, to_out);
    if (thread == 0) to_ffn.ask();
    meet(&scratch->arrivals);
    for (int item = blockIdx.x; item < KV_HEADS * PIECES; item += BLOCKS) {
        attend(item / PIECES, item % PIECES, keys, values, turn, scratch, shared);
    }
    meet(&scratch->arrivals);
    join_pieces(scratch, shared);
    multiply(loaded, to_out, HIDDEN / UNIT, shared);
    if (thread < rows.count) {
        const int row = rows.first + thread;
        scratch->middle[row] = wide(x[row]) + row_sum(shared, thread, HIDDEN / UNIT);
    }

    load_first(loaded, to_ffn);
    meet(&scratch->arrivals);
    #pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = scratch->middle[4 * thread + i];
    normalise(value, norms + HIDDEN, shared);
    multiply(loaded, to_ffn, HIDDEN / UNIT, shared);
    for (int row = thread; row < ffn_rows.count; row += THREADS) {
        const float gate = row_sum(shared, row, HIDDEN / UNIT);
        const float up = row_sum(shared, ffn_rows.count + row, HIDDEN / UNIT);
        scratch->inner[ffn_rows.first + row] = narrow(gate / (1.0f + __expf(-gate)) * up);
    }

    const Units to_down(down, rows, FFN / UNIT);
    load_first(loaded, to_down);
    if (thread == 0) to_down.ask();
    meet(&scratch->arrivals);
    for (int place = thread; place < FFN / 8; place += THREADS) {
        shared.vector[place] = reinterpret_cast<const uint4*>(scratch->inner)[place];
    }
    __syncthreads();
    multiply(loaded, to_down, FFN / UNIT, shared);
    if (thread < rows.count) {
        const int row = rows.first + thread;
        y[row] = narrow(scratch->middle[row] + row_sum(shared, thread, FFN / UNIT));
    }
}
