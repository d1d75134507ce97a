"""A matrix multiplication whose programs take equal shares: of tiles, or of the steps in them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64
STAGES, WARPS = 5, 8
GROUP = 8  # rows of tiles that walk the columns together, so that their B tiles stay in L2


@triton.jit
def _tile_at(index, tiles_m, tiles_n, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the row and column of tile ``index``, GROUP rows at a time."""
    group_tiles = GROUP * tiles_n
    first = index // group_tiles * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + index % group_tiles % rows, index % group_tiles // rows


@triton.jit
def _shares_added(  # type: ignore[no-untyped-def]
    sums, partial_ptr, arrived_ptr, tile, steps, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the sums of all programs of a tile, and whether this one was the last of them.

    A program leaves its sums in the first of its two places if the tile is the first of its share,
    else in the second: no share has more than two tiles that it does not have alone.
    """
    inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    program = tl.program_id(0)
    place = program * 2 + (program * share // steps != tile).to(tl.int32)
    tl.store(partial_ptr + place.to(tl.int64) * (BLOCK_M * BLOCK_N) + inside, sums)
    first = tile * steps // share
    last = ((tile + 1) * steps - 1) // share
    tl.debug_barrier()  # all of the tile is written before it is counted
    is_last = tl.atomic_add(arrived_ptr + tile, 1) == last - first
    if is_last:
        tl.store(arrived_ptr + tile, 0)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        # In order, so that the result does not depend on who was last.
        for other in range(first, last + 1):
            place = other * 2 + (other * share // steps != tile).to(tl.int32)
            theirs = partial_ptr + place.to(tl.int64) * (BLOCK_M * BLOCK_N)
            sums += tl.load(theirs + inside, cache_modifier=".cg")
    return sums, is_last


@triton.jit
def stream_k_kernel(  # type: ignore[no-untyped-def]
    a_desc, b_desc, c_desc, partial_ptr, arrived_ptr, m, n, k, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write a @ b to c: program p takes steps p * share to (p + 1) * share of all tiles' steps."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    at = tl.program_id(0) * share
    end = min(at + share, tiles_m * tiles_n * steps)
    while at < end:
        tile = at // steps
        tile_m, tile_n = _tile_at(tile, tiles_m, tiles_n, GROUP)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        start = at - tile * steps
        stop = min(steps, start + end - at)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(start, stop):
            a = a_desc.load([row, step * BLOCK_K])
            b = b_desc.load([step * BLOCK_K, column])
            sums = tl.dot(a, b, sums)
        is_mine = stop - start == steps
        if stop - start < steps:
            sums, is_mine = _shares_added(
                sums, partial_ptr, arrived_ptr, tile, steps, share, BLOCK_M, BLOCK_N
            )  # fmt: skip
        if is_mine:
            c_desc.store([row, column], sums.to(c_desc.dtype))
        at += stop - start


def share_of(m: int, n: int, k: int, *, programs: int, is_streamed: bool) -> int:
    """Return the steps of a program: as equal as they come, or as whole tiles."""
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    steps = triton.cdiv(k, BLOCK_K)
    if is_streamed:
        return int(triton.cdiv(tiles * steps, programs))
    return int(triton.cdiv(tiles, programs) * steps)


def launch(m: int, n: int, k: int, *, is_streamed: bool, place: str, programs: int) -> Any:
    """Return ``launch(a, b, c)``; rows of a, b and c are multiples of 16 bytes.

    ``programs`` are as many as run at once, or fewer; scratch memory is allocated once, here.
    """
    share = share_of(m, n, k, programs=programs, is_streamed=is_streamed)
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    used = triton.cdiv(tiles * triton.cdiv(k, BLOCK_K), share)
    partials = torch.empty(2 * used * BLOCK_M * BLOCK_N, device=place)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=place)

    def run(a: Any, b: Any, c: Any) -> None:
        stream_k_kernel[(used,)](
            TensorDescriptor.from_tensor(a, [BLOCK_M, BLOCK_K]),
            TensorDescriptor.from_tensor(b, [BLOCK_K, BLOCK_N]),
            TensorDescriptor.from_tensor(c, [BLOCK_M, BLOCK_N]),
            partials, arrived, m, n, k, share,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, GROUP=GROUP,
            num_stages=STAGES, num_warps=WARPS,
        )  # fmt: skip

    return run
