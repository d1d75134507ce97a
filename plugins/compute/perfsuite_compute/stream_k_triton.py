"""A matrix multiplication in whole tiles, and in parts of k for the tiles that fill no wave."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite_compute.gemm_triton import tile_at

BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64
STAGES, WARPS = 5, 8
# Rows of tiles that walk the columns together. With one, the tiles that are left over lie in a row
# and read the same rows of a.
GROUP = 1
# Rows of a tile that one program adds up at a time, and parts that it reads at once.
SLICE, AT_ONCE = 8, 16


@triton.jit
def _product(
    a_desc, b_desc, row, column, start, stop, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return what steps ``start`` to ``stop`` of k give the tile."""
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(start, stop):
        a = a_desc.load([row, step * BLOCK_K])
        b = b_desc.load([step * BLOCK_K, column])
        sums = tl.dot(a, b, sums)
    return sums


@triton.jit
def _leave(sums, place_ptr, arrived_ptr, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Leave the first ``rows`` of a part for those who add the parts up, and count it."""
    inside = tl.arange(0, BLOCK_M)[:, None]
    places = place_ptr + inside * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(places, sums, mask=inside < rows)
    tl.debug_barrier()  # all of the part is written before it is counted
    tl.atomic_add(arrived_ptr, 1)


@triton.jit
def _add_up(
    slice_desc, partial_ptr, counts_ptr, row, column, rows, peers, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SLICE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add up the slices of a tile that nobody has taken yet, if all of its parts are there.

    Nobody waits: a program that comes too early leaves the slices to those after it, the last of
    which finds all parts. The counts are of parts that arrived, slices taken and programs that
    are through; the last program clears them for the next launch.
    """
    inside = tl.arange(0, SLICE * BLOCK_N)[None, :]
    if tl.atomic_add(counts_ptr, 0) == peers:
        first = tl.atomic_add(counts_ptr + 1, 1) * SLICE
        while first < rows:
            sums = tl.zeros((SLICE * BLOCK_N,), dtype=tl.float32)
            # In order, so that the result does not depend on who adds.
            for start in range(0, peers, AT_ONCE):
                part = start + tl.arange(0, AT_ONCE)[:, None]
                places = partial_ptr + (part * BLOCK_M + first) * BLOCK_N + inside
                is_there = (part < peers) & (first + inside // BLOCK_N < rows)
                sums += tl.sum(tl.load(places, is_there, 0.0, cache_modifier=".cg"), 0)
            total = tl.reshape(sums, (SLICE, BLOCK_N)).to(slice_desc.dtype)
            slice_desc.store([row + first, column], total)
            first = tl.atomic_add(counts_ptr + 1, 1) * SLICE
    if tl.atomic_add(counts_ptr + 2, 1) == peers - 1:
        for count in range(3):
            tl.store(counts_ptr + count, 0)


@triton.jit
def stream_k_kernel(
    a_desc, b_desc, c_desc, slice_desc, partial_ptr, counts_ptr, m, n, k, whole, peers,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    SLICE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Write a @ b to c: the first ``whole`` tiles in one piece, each other in ``peers`` parts.

    Parts come first: once a program has its whole tiles, all parts have long been left.
    """
    tiles_m, tiles_n, steps = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), tl.cdiv(k, BLOCK_K)
    program = tl.program_id(0)
    group, part = program // peers, program % peers
    has_part = whole + group < tiles_m * tiles_n
    tile_m, tile_n = tile_at(min(whole + group, tiles_m * tiles_n - 1), tiles_m, tiles_n, GROUP)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    partials = partial_ptr + group * peers * (BLOCK_M * BLOCK_N)
    if has_part:
        start, stop = part * steps // peers, (part + 1) * steps // peers
        sums = _product(a_desc, b_desc, row, column, start, stop, BLOCK_M, BLOCK_N, BLOCK_K)
        place = partials + part * (BLOCK_M * BLOCK_N)
        _leave(sums, place, counts_ptr + 3 * group, m - row, BLOCK_M, BLOCK_N)
    for tile in range(program, whole, tl.num_programs(0)):
        own_m, own_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        own_row, own_column = own_m * BLOCK_M, own_n * BLOCK_N
        sums = _product(a_desc, b_desc, own_row, own_column, 0, steps, BLOCK_M, BLOCK_N, BLOCK_K)
        c_desc.store([own_row, own_column], sums.to(c_desc.dtype))
    if has_part:
        _add_up(
            slice_desc, partials, counts_ptr + 3 * group, row, column, min(m - row, BLOCK_M),
            peers, BLOCK_M, BLOCK_N, SLICE, AT_ONCE,
        )  # fmt: skip


def shares_of(m: int, n: int, k: int, *, programs: int, is_streamed: bool) -> tuple[int, int]:
    """Return how many tiles stay whole, and in how many parts each other is taken.

    Of tiles that fill a wave none is split: programs that walk k side by side read the same rows
    and columns at the same time (the paper's section on data-parallel hybrids).
    """
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    left = tiles % programs
    peers = min(programs // max(left, 1), int(triton.cdiv(k, BLOCK_K)))
    return (tiles - left, peers) if is_streamed and left and peers > 1 else (tiles, 1)


def launch(m: int, n: int, k: int, *, is_streamed: bool, place: str, programs: int) -> Any:
    """Return ``launch(a, b, c)``; rows of a, b and c are multiples of 16 bytes.

    ``programs`` are as many as run at once, or fewer; scratch memory is allocated once, here.
    """
    whole, peers = shares_of(m, n, k, programs=programs, is_streamed=is_streamed)
    left = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N) - whole
    partials = torch.empty(max(left * peers, 1) * BLOCK_M * BLOCK_N, device=place)
    counts = torch.zeros(3 * max(left, 1), dtype=torch.int32, device=place)

    def run(a: Any, b: Any, c: Any) -> None:
        stream_k_kernel[(min(programs, max(whole, left * peers)),)](
            TensorDescriptor.from_tensor(a, [BLOCK_M, BLOCK_K]),
            TensorDescriptor.from_tensor(b, [BLOCK_K, BLOCK_N]),
            TensorDescriptor.from_tensor(c, [BLOCK_M, BLOCK_N]),
            TensorDescriptor.from_tensor(c, [SLICE, BLOCK_N]),
            partials, counts, m, n, k, whole, peers,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, GROUP=GROUP,
            SLICE=SLICE, AT_ONCE=AT_ONCE, num_stages=STAGES, num_warps=WARPS,
        )  # fmt: skip

    return run
