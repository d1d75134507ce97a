"""A state space scan in Triton: chunks as matrix products, the state in registers between them."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CHUNK, STAGES, STATE_STAGES, WARPS = 64, 2, 3, 4
# Heads of one program, one or two: they share b and c, of which a chunk has four times as much as
# of x. Registers hold the states of two, but not a scan's scores beside them: there it is one.
STATE_EACH = 2
# Programs that share a head's tokens: with one there is less than one an SM, and while its products
# wait for each other nothing else runs.
SEGMENTS = 4


@triton.jit
def decay_kernel(
    decay, since, s, chunks, HEADS: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr
):
    """Write the sums of one chunk's logarithms to base 2, from its start on, head by head."""
    sequence = tl.program_id(0) // chunks
    at = tl.program_id(0) % chunks * CHUNK + tl.arange(0, CHUNK)
    heads = tl.arange(0, PADDED)
    where = (sequence * s + at)[:, None] * HEADS + heads[None, :]
    # What lies beyond the end decays nothing.
    logs = tl.load(decay + where, (at < s)[:, None] & (heads < HEADS)[None, :], 0.0)
    to = (sequence * HEADS + heads)[None, :] * (chunks * CHUNK) + at[:, None]
    tl.store(since + to, tl.cumsum(logs * 1.4426950408889634, 0), (heads < HEADS)[None, :])


@triton.jit
def _grown(state, keys, values, since, whole):
    """Return the state after a chunk: what is left of it, and of all that the chunk adds."""
    left = (values.to(tl.float32) * tl.exp2(whole - since)[:, None]).to(values.dtype)
    return tl.dot(tl.trans(keys), left, state * tl.exp2(whole))


@triton.jit
def _taken(desc, sequence, at, column, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return a block of a sequence's rows, zeros beyond its end."""
    return tl.reshape(desc.load([sequence, at, column]), (ROWS, COLS))


@triton.jit
def _fed(
    state, total, keys, x_desc, line, sequence, head, at, P: tl.constexpr, CHUNK: tl.constexpr
):
    """Return a head's state after a chunk, and the logarithm of all its decay so far."""
    values = _taken(x_desc, sequence, at, head * P, CHUNK, P)
    whole = tl.load(line + at + CHUNK - 1)
    logs = tl.load(line + at + tl.arange(0, CHUNK))
    return _grown(state, keys, values, logs, whole), total + whole


@triton.jit
def _leave(states, logs, number, state, total, P: tl.constexpr, N: tl.constexpr):
    places, channels = tl.arange(0, N), tl.arange(0, P)
    tl.store(states + (number * N + places[:, None]) * P + channels[None, :], state)
    tl.store(logs + number, total)


@triton.jit
def state_kernel(
    x_desc, since, b_desc, states, logs, heads, chunks, share, P: tl.constexpr, N: tl.constexpr,
    CHUNK: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Write the state that each segment but the last, of ``share`` chunks, comes to from nothing.

    And by how much one before it decays, to base 2.
    """
    sequence = tl.program_id(0) // (heads // EACH)
    line = since + tl.program_id(0) * EACH * chunks * CHUNK
    head = tl.program_id(0) % (heads // EACH) * EACH
    state, total = tl.zeros((N, P), dtype=tl.float32), 0.0
    if EACH > 1:
        state_2, total_2 = tl.zeros((N, P), dtype=tl.float32), 0.0
    first = tl.program_id(1) * share
    for chunk in range(first, first + share):
        at = chunk * CHUNK
        keys = _taken(b_desc, sequence, at, 0, CHUNK, N)
        state, total = _fed(state, total, keys, x_desc, line, sequence, head, at, P, CHUNK)
        if EACH > 1:
            state_2, total_2 = _fed(
                state_2, total_2, keys, x_desc, line + chunks * CHUNK, sequence, head + 1, at,
                P, CHUNK,
            )  # fmt: skip
    number = tl.program_id(0) * EACH * tl.num_programs(1) + tl.program_id(1)
    _leave(states, logs, number, state, total, P, N)
    if EACH > 1:
        _leave(states, logs, number + tl.num_programs(1), state_2, total_2, P, N)


@triton.jit
def _begun(states, logs, head, P: tl.constexpr, N: tl.constexpr):
    """Return the state before a segment: what is left of those that the ones before came to."""
    places, channels = tl.arange(0, N), tl.arange(0, P)
    state = tl.zeros((N, P), dtype=tl.float32)
    first = head * (tl.num_programs(1) - 1)
    for at in range(first, first + tl.program_id(1)):
        added = tl.load(states + (at * N + places[:, None]) * P + channels[None, :])
        state = state * tl.exp2(tl.load(logs + at)) + added
    return state


@triton.jit
def scan_kernel(
    x_desc, since, b_desc, c_desc, states, logs, y_desc, heads, chunks, share, P: tl.constexpr,
    N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Scan one segment of one head."""
    sequence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    line = since + tl.program_id(0) * chunks * CHUNK
    state = _begun(states, logs, tl.program_id(0), P, N)
    steps = tl.arange(0, CHUNK)
    first = tl.program_id(1) * share
    for chunk in range(first, tl.minimum(first + share, chunks)):
        at = chunk * CHUNK
        # What lies beyond the end is zeros and adds nothing.
        keys = _taken(b_desc, sequence, at, 0, CHUNK, N)
        queries = _taken(c_desc, sequence, at, 0, CHUNK, N)
        products = tl.dot(queries, tl.trans(keys))
        values = _taken(x_desc, sequence, at, head * P, CHUNK, P)
        logs_since = tl.load(line + at + steps)
        whole = tl.load(line + at + CHUNK - 1)
        # Within the chunk, each step sees itself and those before it, decayed since.
        gap = logs_since[:, None] - logs_since[None, :]
        scores = tl.where(steps[:, None] >= steps[None, :], products * tl.exp2(gap), 0.0)
        # What came before the chunk, through the state.
        result = tl.dot(queries, state.to(values.dtype)) * tl.exp2(logs_since)[:, None]
        result = tl.dot(scores.to(values.dtype), values, result)
        y_desc.store([sequence, at, head * P], tl.reshape(result.to(values.dtype), (1, CHUNK, P)))
        state = _grown(state, keys, values, logs_since, whole)


def scan(x: Any, decay: Any, b: Any, c: Any, y: Any) -> None:
    """Write the scan of x, [batch, s, heads, p], to y; decay is logarithmic, b and c [batch, s, n].

    All are contiguous and shorter than 2^31; p and n are powers of two.
    """
    import torch

    batch, s, heads, p = x.shape
    n, chunks = b.shape[2], triton.cdiv(s, CHUNK)
    share = triton.cdiv(chunks, SEGMENTS)
    segments = triton.cdiv(chunks, share)
    each = 1 if heads % STATE_EACH else STATE_EACH

    def empty(*shape: int) -> Any:
        return torch.empty(*shape, dtype=torch.float32, device=x.device)

    def blocks(array: Any, width: int) -> Any:
        flat = array.view(batch, s, -1)
        return TensorDescriptor(flat, flat.shape, flat.stride(), [1, CHUNK, width])

    since = empty(batch * heads, chunks * CHUNK)
    states, logs = empty(batch * heads, segments - 1, n, p), empty(batch * heads, segments - 1)
    sizes = {"P": p, "N": n, "CHUNK": CHUNK}
    decay_kernel[(batch * chunks,)](
        decay, since, s, chunks, HEADS=heads, PADDED=triton.next_power_of_2(heads), CHUNK=CHUNK
    )
    if segments > 1:
        state_kernel[(batch * heads // each, segments - 1)](
            blocks(x, p), since, blocks(b, n), states, logs, heads, chunks, share,
            **sizes, EACH=each, num_stages=STATE_STAGES, num_warps=WARPS,
        )  # fmt: skip
    scan_kernel[(batch * heads, segments)](
        blocks(x, p), since, blocks(b, n), blocks(c, n), states, logs, blocks(y, p),
        heads, chunks, share, **sizes, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
