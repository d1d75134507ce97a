"""A state space scan in Triton: chunks as matrix products, the state in registers between them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

CHUNK, BLOCK_P, STAGES, WARPS = 64, 64, 2, 4
# Programs that share a head's tokens: with one a head there is one an SM, and while its products
# wait for each other nothing else runs.
SEGMENTS, STATE_STAGES = 4, 3


@triton.jit
def decay_kernel(  # type: ignore[no-untyped-def]
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
def _grown(state, keys, values, since, whole):  # type: ignore[no-untyped-def]
    """Return the state after a chunk: what is left of it, and of all that the chunk adds."""
    left = (values.to(tl.float32) * tl.exp2(whole - since)[:, None]).to(values.dtype)
    return tl.dot(tl.trans(keys), left, state * tl.exp2(whole))


@triton.jit
def state_kernel(  # type: ignore[no-untyped-def]
    x, since, b, states, logs, s, heads, chunks, share,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the state that each segment but the last, of ``share`` chunks, comes to from nothing.

    And by how much one before it decays, to base 2.
    """
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    channels = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    places = tl.arange(0, N)
    steps = tl.arange(0, CHUNK)
    state = tl.zeros((N, BLOCK_P), dtype=tl.float32)
    total = 0.0
    first = tl.program_id(2) * share
    for chunk in range(first, first + share):
        at = chunk * CHUNK + steps
        inside = at < s
        token = sequence * s + at
        line = since + (tl.program_id(0) * chunks + chunk) * CHUNK
        keys = tl.load(b + token[:, None] * N + places[None, :], inside[:, None], 0.0)
        where = (token[:, None] * heads + head) * P + channels[None, :]
        values = tl.load(x + where, inside[:, None], 0.0)
        whole = tl.load(line + CHUNK - 1)
        state = _grown(state, keys, values, tl.load(line + steps), whole)
        total += whole
    segment = tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)
    tl.store(states + (segment * N + places[:, None]) * P + channels[None, :], state)
    tl.store(logs + segment, total)


@triton.jit
def _begun(  # type: ignore[no-untyped-def]
    states, logs, segment, channels, P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr
):
    """Return the state before a segment: what is left of those that the ones before came to."""
    places = tl.arange(0, N)
    state = tl.zeros((N, BLOCK_P), dtype=tl.float32)
    first = tl.program_id(0) * (tl.num_programs(2) - 1)
    for at in range(first, first + segment):
        added = tl.load(states + (at * N + places[:, None]) * P + channels[None, :])
        state = state * tl.exp2(tl.load(logs + at)) + added
    return state


@triton.jit
def scan_kernel(  # type: ignore[no-untyped-def]
    x, since, b, c, states, logs, y, s, heads, chunks, share,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Scan one segment of one head for BLOCK_P of its channels, which do not know each other."""
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    channels = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    places = tl.arange(0, N)
    steps = tl.arange(0, CHUNK)
    state = _begun(states, logs, tl.program_id(2), channels, P, N, BLOCK_P)
    first = tl.program_id(2) * share
    for chunk in range(first, min(first + share, chunks)):
        at = chunk * CHUNK + steps
        # What lies beyond the end adds nothing.
        inside = (at < s)[:, None]
        token = (sequence * s + at)[:, None]
        line = since + (tl.program_id(0) * chunks + chunk) * CHUNK
        keys = tl.load(b + token * N + places[None, :], inside, 0.0)
        queries = tl.load(c + token * N + places[None, :], inside, 0.0)
        where = (token * heads + head) * P + channels[None, :]
        values = tl.load(x + where, inside, 0.0)
        logs_since = tl.load(line + steps)
        whole = tl.load(line + CHUNK - 1)
        # What came before the chunk, through the state.
        result = tl.dot(queries, state.to(values.dtype)) * tl.exp2(logs_since)[:, None]
        # Within the chunk, each step sees itself and those before it, decayed since.
        gap = logs_since[:, None] - logs_since[None, :]
        scores = tl.dot(queries, tl.trans(keys))
        scores = tl.where(steps[:, None] >= steps[None, :], scores * tl.exp2(gap), 0.0)
        result = tl.dot(scores.to(values.dtype), values, result)
        state = _grown(state, keys, values, logs_since, whole)
        tl.store(y + where, result.to(y.dtype.element_ty), inside)


def scan(x: Any, decay: Any, b: Any, c: Any, y: Any) -> None:
    """Write the scan of x, [batch, s, heads, p], to y; decay is logarithmic, b and c [batch, s, n].

    All are contiguous and shorter than 2^31; p is a multiple of BLOCK_P, n a power of two.
    """
    import torch

    batch, s, heads, p = x.shape
    n, chunks = b.shape[2], triton.cdiv(s, CHUNK)
    share = triton.cdiv(chunks, SEGMENTS)
    segments = triton.cdiv(chunks, share)

    def empty(*shape: int) -> Any:
        return torch.empty(*shape, dtype=torch.float32, device=x.device)

    since = empty(batch * heads, chunks * CHUNK)
    states, logs = empty(batch * heads, segments - 1, n, p), empty(batch * heads, segments - 1)
    sizes = {"P": p, "N": n, "BLOCK_P": BLOCK_P, "CHUNK": CHUNK}
    decay_kernel[(batch * chunks,)](
        decay, since, s, chunks, HEADS=heads, PADDED=triton.next_power_of_2(heads), CHUNK=CHUNK
    )
    if segments > 1:
        state_kernel[(batch * heads, p // BLOCK_P, segments - 1)](
            x, since, b, states, logs, s, heads, chunks, share,
            **sizes, num_stages=STATE_STAGES, num_warps=WARPS,
        )  # fmt: skip
    scan_kernel[(batch * heads, p // BLOCK_P, segments)](
        x, since, b, c, states, logs, y, s, heads, chunks, share,
        **sizes, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
