"""The gated delta rule in Triton: what chunks solve on their own, then a state through them all."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CHUNK = 64
# Rows of a chunk's triangular system that are solved one after the other.
TILE = 16
SOLVE_WARPS = 4
# Columns of a state that one program carries: all of its chunks wait for each other, so that few
# columns make many programs and short products.
BLOCK, WARPS, STAGES = 32, 4, 3
DECODE_BLOCK, DECODE_WARPS = 32, 1


@triton.jit
def _taken(desc, sequence, at, column, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return a block of a sequence's rows, zeros beyond its end."""
    return tl.reshape(desc.load([sequence, at, column]), (ROWS, COLS))


@triton.jit
def _solved(lower, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """Return the inverse of I + lower, which is zero on its diagonal and above.

    Row by row within tiles on the diagonal, of all of them at once. With the inverse D of those
    alone and the other tiles L, M = D L has no fourth power: the whole is (I - M)(I + M M) D.
    """
    COUNT: tl.constexpr = CHUNK // TILE
    numbers, steps = tl.arange(0, COUNT), tl.arange(0, TILE)
    is_diagonal = (numbers[:, None] == numbers[None, :])[:, None, :, None]
    tiles = tl.reshape(lower, (COUNT, TILE, COUNT, TILE))
    found = -tl.sum(tl.where(is_diagonal, tiles, 0.0), 2)
    for i in range(2, TILE):
        is_row = (steps == i)[None, :, None]
        row = tl.sum(tl.where(is_row, found, 0.0), 1)
        row += tl.sum(row[:, :, None] * found, 1)
        found = tl.where(is_row, row[:, None, :], found)
    found += tl.where(steps[:, None] == steps[None, :], 1.0, 0.0)[None, :, :]
    near = tl.reshape(tl.where(is_diagonal, found[:, :, None, :], 0.0), (CHUNK, CHUNK))
    far = tl.reshape(tl.where(is_diagonal, 0.0, tiles), (CHUNK, CHUNK))
    step = tl.dot(near, far)
    closer = near + tl.dot(tl.dot(step, step), near)
    return closer - tl.dot(step, closer)


@triton.jit
def solve_kernel(
    q_desc, k_desc, v_desc, decay, beta, w_desc, u_desc, p_desc, since, s, heads, group, scale,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write what one chunk of one head adds, without what it needs of the state before it.

    The values u that it would write into an empty state, what w of that state they lose, the
    scores p by which its queries see them, and the sums of its logarithms to base 2.
    """
    head, sequence = tl.program_id(1) % heads, tl.program_id(1) // heads
    at, steps = tl.program_id(0) * CHUNK, tl.arange(0, CHUNK)
    to = tl.program_id(1) * tl.num_programs(0) * CHUNK + at
    # What lies beyond the end decays nothing and writes nothing.
    where, inside = (sequence * s + at + steps) * heads + head, at + steps < s
    logs = tl.cumsum(tl.load(decay + where, inside, 0.0) * 1.4426950408889634, 0)
    share = tl.load(beta + where, inside, 0.0).to(tl.float32)
    tl.store(since + to + steps, logs)
    keys = _taken(k_desc, sequence, at, head // group * K, CHUNK, K)
    is_before = steps[:, None] > steps[None, :]
    left = tl.exp2(tl.where(steps[:, None] >= steps[None, :], logs[:, None] - logs[None, :], 0.0))
    lower = tl.dot(keys, tl.trans(keys)) * left * share[:, None]
    solved = _solved(tl.where(is_before, lower, 0.0), CHUNK, TILE) * share[None, :]
    values = _taken(v_desc, sequence, at, head * V, CHUNK, V)
    u_desc.store([to, 0], tl.dot(solved.to(keys.dtype), values).to(keys.dtype))
    solved *= tl.exp2(logs)[None, :]
    w_desc.store([to, 0], tl.dot(solved.to(keys.dtype), keys).to(keys.dtype))
    queries = _taken(q_desc, sequence, at, head // group * K, CHUNK, K)
    scores = tl.dot(queries, tl.trans(keys)) * left * scale
    scores = tl.where(steps[:, None] >= steps[None, :], scores, 0.0)
    p_desc.store([to, 0], scores.to(keys.dtype))


@triton.jit
def state_kernel(
    q_desc, k_desc, w_desc, u_desc, p_desc, since, before, o_desc, after, heads, group, chunks,
    scale, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take some columns of one head's state through all chunks, and write what queries read."""
    head, sequence = tl.program_id(1) % heads, tl.program_id(1) // heads
    column, steps = tl.program_id(0) * BLOCK, tl.arange(0, CHUNK)
    places = (tl.program_id(1) * K + tl.arange(0, K)[:, None]) * V
    places += column + tl.arange(0, BLOCK)[None, :]
    state = tl.load(before + places).to(tl.float32)
    for chunk in range(chunks):
        at = chunk * CHUNK
        row = tl.program_id(1) * chunks * CHUNK + at
        logs = tl.load(since + row + steps)
        whole = tl.load(since + row + CHUNK - 1)
        weights = w_desc.load([row, 0])
        held = state.to(weights.dtype)
        new = u_desc.load([row, column]).to(tl.float32) - tl.dot(weights, held)
        queries = _taken(q_desc, sequence, at, head // group * K, CHUNK, K)
        result = tl.dot(queries, held) * (tl.exp2(logs) * scale)[:, None]
        result = tl.dot(p_desc.load([row, 0]), new.to(weights.dtype), result)
        o_desc.store(
            [sequence, at, head * V + column],
            tl.reshape(result.to(weights.dtype), (1, CHUNK, BLOCK)),
        )
        keys = _taken(k_desc, sequence, at, head // group * K, CHUNK, K)
        left = (new * tl.exp2(whole - logs)[:, None]).to(weights.dtype)
        state = tl.dot(tl.trans(keys), left, state * tl.exp2(whole))
    tl.store(after + places, state.to(after.dtype.element_ty))


@triton.jit
def decode_kernel(
    q, k, v, decay, beta, before, o, after, group, scale, K: tl.constexpr, V: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Take some columns of one head's state one token on, and read them."""
    head, rows = tl.program_id(1), tl.arange(0, K)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = (head * K + rows[:, None]) * V + columns[None, :]
    state = tl.load(before + places).to(tl.float32)
    state *= tl.exp2(tl.load(decay + head) * 1.4426950408889634)
    keys = tl.load(k + head // group * K + rows).to(tl.float32)
    values = tl.load(v + head * V + columns).to(tl.float32)
    values -= tl.sum(state * keys[:, None], 0)
    values *= tl.load(beta + head).to(tl.float32)
    state += keys[:, None] * values[None, :]
    tl.store(after + places, state.to(after.dtype.element_ty))
    queries = tl.load(q + head // group * K + rows).to(tl.float32) * scale
    tl.store(o + head * V + columns, tl.sum(state * queries[:, None], 0).to(o.dtype.element_ty))


def prefill(q: Any, k: Any, v: Any, decay: Any, beta: Any, before: Any, o: Any, after: Any) -> None:
    """Write what all tokens read to o, [batch, s, heads, v], and the state behind them to after.

    q and k are [batch, s, heads of keys, k], decay, in logarithms, and beta [batch, s, heads],
    states [batch, heads, k, v]. All are contiguous and shorter than 2^31.
    """
    (batch, s, heads, wide), (lines_of_keys, deep) = v.shape, q.shape[2:]
    chunks, lines = triton.cdiv(s, CHUNK), batch * heads
    group, scale = heads // lines_of_keys, deep**-0.5

    def blocks(array: Any, width: int) -> Any:
        flat = array.flatten(2)
        return TensorDescriptor(flat, flat.shape, flat.stride(), [1, CHUNK, width])

    def rows(array: Any, width: int) -> Any:
        return TensorDescriptor(array, array.shape, array.stride(), [CHUNK, width])

    w, u, p = (q.new_empty(lines * chunks * CHUNK, each) for each in (deep, wide, CHUNK))
    since = decay.new_empty(lines * chunks * CHUNK)
    given = blocks(q, deep), blocks(k, deep)
    solve_kernel[(chunks, lines)](
        *given, blocks(v, wide), decay, beta, rows(w, deep), rows(u, wide), rows(p, CHUNK), since,
        s, heads, group, scale,
        K=deep, V=wide, CHUNK=CHUNK, TILE=TILE, num_warps=SOLVE_WARPS,
    )  # fmt: skip
    state_kernel[(wide // BLOCK, lines)](
        *given, rows(w, deep), rows(u, BLOCK), rows(p, CHUNK), since, before, blocks(o, BLOCK),
        after, heads, group, chunks, scale,
        K=deep, V=wide, CHUNK=CHUNK, BLOCK=BLOCK, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def decode(q: Any, k: Any, v: Any, decay: Any, beta: Any, before: Any, o: Any, after: Any) -> None:
    """Write what one token of each sequence reads to o, and the state behind it to after.

    Of shapes as in ``prefill``, with s = 1.
    """
    batch, _, heads, wide = v.shape
    deep = q.shape[3]
    decode_kernel[(wide // DECODE_BLOCK, batch * heads)](
        q, k, v, decay, beta, before, o, after, heads // q.shape[2], deep**-0.5,
        K=deep, V=wide, BLOCK=DECODE_BLOCK, num_warps=DECODE_WARPS,
    )  # fmt: skip
