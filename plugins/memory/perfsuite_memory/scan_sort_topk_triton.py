"""A prefix sum in one pass and the largest of many, in Triton; n < 2**31."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

# A tile of the scan is one warp's: 64 elements a thread in 16-byte loads, and every value that the
# look-back waits for is seen by one warp alone.
SCAN_BLOCK, SCAN_WARPS = 2048, 1
WINDOW = 32
# Elements of a block whose largest is noted, and those of a block that is sorted.
MAXIMUM_BLOCK, MAXIMUM_WARPS = 16384, 8
TOP_BLOCK, TOP_WARPS = 4096, 8
# Blocks of an array of 2^26: the program that ranks their maxima holds all of them.
RANK_BLOCK = 4096
RANK_WARPS = 8

# A word of the scan's state: the flag below, the value above.
_SUM, _PREFIX = tl.constexpr(1), tl.constexpr(2)
# Below every ranked block: the least value, and no block's number.
_NO_BLOCK = tl.constexpr(-(2**63) + 2**32 - 1)


@triton.jit
def scan_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0915 - one pass, one kernel
    x_ptr, out_ptr, state_ptr, n, BLOCK: tl.constexpr, WINDOW: tl.constexpr
):
    """Write the prefix sums of one tile, looking back at what earlier tiles have published.

    The state is zero at first: a ticket, so that a tile waits only for tiles that have begun, then
    a word a tile, its own sum and later the sum of all up to it (Merrill and Garland, 2016).
    """
    tile = tl.atomic_add(state_ptr, 1, sem="relaxed").to(tl.int32)
    words = state_ptr + 1
    first = tile * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    # A mask is as coarse as n is round: of an odd n all accesses would be of one element.
    is_whole = first <= n - BLOCK
    if is_whole:
        x = tl.load(x_ptr + offsets)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    total = tl.sum(x, axis=0)
    tl.atomic_xchg(words + tile, (total.to(tl.int64) << 32) | _SUM, sem="relaxed")
    lanes = tl.arange(0, WINDOW)
    before = total * 0
    at = tile - 1
    while at >= 0:
        back = words + at - lanes
        is_tile = lanes <= at
        # What lies before the first tile is a prefix of 0.
        seen = tl.load(back, mask=is_tile, other=_PREFIX, volatile=True)
        while tl.min(seen & 3, axis=0) == 0:
            seen = tl.load(back, mask=is_tile, other=_PREFIX, volatile=True)
        nearest = tl.min(tl.where((seen & 3) == _PREFIX, lanes, WINDOW), axis=0)
        values = (seen >> 32).to(tl.int32)
        before += tl.sum(tl.where(lanes <= nearest, values, 0), axis=0)
        at = tl.where(nearest < WINDOW, -1, at - WINDOW)
    tl.atomic_xchg(words + tile, ((before + total).to(tl.int64) << 32) | _PREFIX, sem="relaxed")
    sums = tl.cumsum(x, axis=0) + before
    if is_whole:
        tl.store(out_ptr + offsets, sums)
    else:
        tl.store(out_ptr + offsets, sums, mask=offsets < n)


@triton.jit
def maximum_kernel(  # type: ignore[no-untyped-def]
    x_ptr, ranked_ptr, n, BLOCK: tl.constexpr
):
    """Write a block's largest element, in an order that whole numbers have, above its number."""
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    if block * BLOCK <= n - BLOCK:
        x = tl.load(x_ptr + offsets)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=float("-inf"))
    largest = tl.max(x, axis=0)
    bits = largest.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    tl.store(ranked_ptr + block, (key.to(tl.int64) << 32) | block)


@triton.jit
def rank_kernel(  # type: ignore[no-untyped-def]
    ranked_ptr, chosen_ptr, count, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the numbers of the K blocks whose largest elements are the largest, -1 for none."""
    offsets = tl.arange(0, BLOCK)
    ranked = tl.load(ranked_ptr + offsets, mask=offsets < count, other=_NO_BLOCK)
    chosen = tl.topk(ranked, K).to(tl.int32)
    tl.store(chosen_ptr + tl.arange(0, K), chosen)


@triton.jit
def top_of_kernel(  # type: ignore[no-untyped-def]
    x_ptr, chosen_ptr, top_ptr, n, K: tl.constexpr, PARENT: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the K largest of one part of a chosen block of PARENT elements."""
    block = tl.load(chosen_ptr + tl.program_id(0))
    offsets = block * PARENT + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=(offsets < n) & (block >= 0), other=float("-inf"))
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(top_ptr + place * K + tl.arange(0, K), tl.topk(x, K))


@triton.jit
def top_kernel(  # type: ignore[no-untyped-def]
    x_ptr, top_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the K largest of one block."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=float("-inf"))
    tl.store(top_ptr + tl.program_id(0) * K + tl.arange(0, K), tl.topk(x, K))


def state_words(n: int) -> int:
    """Return how many int64 words a scan of n elements needs."""
    return 1 + -(-n // SCAN_BLOCK)


def scan(n: int, state: Any) -> Callable[[Any, Any], None]:
    """Return the launch of an inclusive prefix sum of int32."""

    def launch(x: Any, out: Any) -> None:
        state.zero_()
        scan_kernel[(triton.cdiv(n, SCAN_BLOCK),)](
            x, out, state, n, BLOCK=SCAN_BLOCK, WINDOW=WINDOW, num_warps=SCAN_WARPS
        )

    return launch


def top(n: int, k: int, empty: Callable[..., Any]) -> Callable[[Any, Any], None]:
    """Return the launch that writes the k largest of n float32 in falling order.

    An element among the k largest lies in one of the k blocks with the largest maxima, or else k
    blocks would each hold a larger one; so one pass finds the maxima, and few elements are left.
    """
    blocks, parts = triton.cdiv(n, MAXIMUM_BLOCK), MAXIMUM_BLOCK // TOP_BLOCK
    ranked, chosen = empty(blocks, dtype="int64"), empty(k, dtype="int32")
    most = empty(k * parts * k, dtype="float32")
    few = empty(triton.cdiv(most.numel(), TOP_BLOCK) * k, dtype="float32")

    def launch(x: Any, out: Any) -> None:
        maximum_kernel[(blocks,)](x, ranked, n, BLOCK=MAXIMUM_BLOCK, num_warps=MAXIMUM_WARPS)
        rank_kernel[(1,)](ranked, chosen, blocks, K=k, BLOCK=RANK_BLOCK, num_warps=RANK_WARPS)
        top_of_kernel[(k, parts)](
            x, chosen, most, n, K=k, PARENT=MAXIMUM_BLOCK, BLOCK=TOP_BLOCK, num_warps=TOP_WARPS
        )
        here = most
        for there in (few, out):
            size = here.numel()
            top_kernel[(there.numel() // k,)](
                here, there, size, K=k, BLOCK=TOP_BLOCK, num_warps=TOP_WARPS
            )
            here = there

    return launch
