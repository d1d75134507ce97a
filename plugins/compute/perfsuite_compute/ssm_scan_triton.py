"""A state space scan in Triton: chunks as matrix products, the state in registers between them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

CHUNK, BLOCK_P, STAGES, WARPS = 64, 32, 2, 4


@triton.jit
def scan_kernel(  # type: ignore[no-untyped-def]
    x, decay, b, c, y, s, heads,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Scan one head of one sequence for BLOCK_P of its channels, which do not know each other."""
    sequence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    channels = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    places = tl.arange(0, N)
    steps = tl.arange(0, CHUNK)
    state = tl.zeros((N, BLOCK_P), dtype=tl.float32)
    for start in range(0, s, CHUNK):
        at = start + steps
        inside = at < s
        token = sequence * s + at
        # What lies beyond the end decays nothing and adds nothing.
        logs = tl.load(decay + token * heads + head, inside, 0.0)
        keys = tl.load(b + token[:, None] * N + places[None, :], inside[:, None], 0.0)
        queries = tl.load(c + token[:, None] * N + places[None, :], inside[:, None], 0.0)
        where = (token[:, None] * heads + head) * P + channels[None, :]
        values = tl.load(x + where, inside[:, None], 0.0)
        since = tl.cumsum(logs, 0)
        whole = tl.sum(logs, 0)
        # Within the chunk, each step sees itself and those before it, decayed since.
        gap = since[:, None] - since[None, :]
        scores = tl.dot(queries, tl.trans(keys))
        scores = tl.where(steps[:, None] >= steps[None, :], scores * tl.exp(gap), 0.0)
        result = tl.dot(scores.to(values.dtype), values)
        # And all that came before the chunk, through the state.
        result += tl.dot(queries, state.to(values.dtype)) * tl.exp(since)[:, None]
        left = (keys.to(tl.float32) * tl.exp(whole - since)[:, None]).to(values.dtype)
        state = tl.dot(tl.trans(left), values, state * tl.exp(whole))
        tl.store(y + where, result.to(y.dtype.element_ty), inside[:, None])


def scan(x: Any, decay: Any, b: Any, c: Any, y: Any) -> None:
    """Write the scan of x, [batch, s, heads, p], to y; decay is logarithmic, b and c [batch, s, n].

    All are contiguous and shorter than 2^31; p is a multiple of BLOCK_P, n a power of two.
    """
    batch, s, heads, p = x.shape
    scan_kernel[(batch * heads, p // BLOCK_P)](
        x, decay, b, c, y, s, heads,
        P=p, N=b.shape[2], BLOCK_P=BLOCK_P, CHUNK=CHUNK, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
