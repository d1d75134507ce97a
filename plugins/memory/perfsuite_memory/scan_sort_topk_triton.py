"""A prefix sum in one pass, in Triton; n < 2**31."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

# A tile of the scan is one warp's: 128 elements a thread in 16-byte loads, and every value that the
# look-back waits for is seen by one warp alone. With 64 elements, and twice as many tiles to look
# back at, an H200 takes 4 % more for 2^26. With more warps WINDOW must be 32 a warp or more, or
# copies of a word in two warps could differ.
SCAN_BLOCK, SCAN_WARPS = 4096, 1
# A word a lane. A GPU begins 110 tiles in the microsecond that a word takes from one SM to another,
# so that four such windows are looked through before a prefix is met, of 64 words only two; but
# these cost more than they save (by 4 % with tiles of half the size).
WINDOW = 32

# The lower half of a word of the scan's state: the launch, and what the value above it is.
_SUM, _PREFIX = tl.constexpr(1), tl.constexpr(2)
_LAUNCHES, _MARK = tl.constexpr(2**29 - 1), tl.constexpr(2**31 - 1)


# Of one tile Triton 3.6 makes a constant, and then no kernel: its compiler aborts.
@triton.jit(do_not_specialize=["tiles"])
def scan_kernel(x_ptr, out_ptr, state_ptr, n, tiles, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Write the prefix sums of one tile, looking back at what earlier tiles have published.

    The state is a ticket, so that a tile waits only for tiles that have begun, then a word a tile:
    its own sum and later the sum of all up to it (Merrill and Garland, 2016). It is zero before
    the first launch only: every launch takes as many tickets, which say whose a word is.
    """
    ticket = tl.atomic_add(state_ptr, 1, sem="relaxed")
    launch = ticket // tiles
    tile = (ticket - launch * tiles).to(tl.int32)
    mark = ((launch + 1) & _LAUNCHES) << 2
    # A mask is as coarse as n is round: of an odd n all accesses would be of one element.
    if tile * BLOCK <= n - BLOCK:
        _scan_tile(x_ptr, out_ptr, state_ptr + 1, tile, mark, BLOCK, WINDOW)
    else:
        _scan_rest(x_ptr, out_ptr, state_ptr + 1, tile, mark, n, BLOCK, WINDOW)


@triton.jit
def _scan_tile(x_ptr, out_ptr, words, tile, mark, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    total = tl.sum(x, axis=0)
    tl.atomic_xchg(words + tile, (total.to(tl.int64) << 32) | mark | _SUM, sem="relaxed")
    before = _sum_before(words, tile, mark, WINDOW)
    both = (before + total).to(tl.int64)
    tl.atomic_xchg(words + tile, (both << 32) | mark | _PREFIX, sem="relaxed")
    tl.store(out_ptr + offsets, tl.cumsum(x, axis=0) + before)


@triton.jit
def _scan_rest(x_ptr, out_ptr, words, tile, mark, n, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Scan the last tile, for whose sum no tile waits, in parts: it costs no registers."""
    before = _sum_before(words, tile, mark, WINDOW)
    for start in range(tile * BLOCK, n, BLOCK // 8):
        offsets = start + tl.arange(0, BLOCK // 8)
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
        tl.store(out_ptr + offsets, tl.cumsum(x, axis=0) + before, mask=offsets < n)
        before += tl.sum(x, axis=0)


@triton.jit
def _sum_before(words, tile, mark, WINDOW: tl.constexpr):
    """Add the sums of the tiles before this one, back to the nearest that knows its prefix."""
    lanes = tl.arange(0, WINDOW)
    before = tile * 0
    at = tile - 1
    while at >= 0:
        seen = _words_at(words, at, mark, WINDOW)
        first = _first_without_sum(seen, mark, WINDOW)
        # Odd: that tile has published nothing yet.
        while first & 1 == 1:
            seen = _words_at(words, at, mark, WINDOW)
            first = _first_without_sum(seen, mark, WINDOW)
        nearest = first >> 1
        before += tl.sum(tl.where(lanes <= nearest, (seen >> 32).to(tl.int32), 0), axis=0)
        at = tl.where(nearest < WINDOW, -1, at - WINDOW)
    return before


@triton.jit
def _words_at(words, at, mark, WINDOW: tl.constexpr):
    lanes = tl.arange(0, WINDOW)
    # What lies before the first tile is a prefix of 0.
    return tl.load(words + at - lanes, mask=lanes <= at, other=mark | _PREFIX, volatile=True)


@triton.jit
def _first_without_sum(seen, mark, WINDOW: tl.constexpr):
    """Return twice the nearest place that has no sum alone, and one more if it has no prefix."""
    lanes = tl.arange(0, WINDOW)
    kind = (seen & _MARK) - mark
    place = 2 * lanes + tl.where(kind == _PREFIX, 0, 1)
    return tl.min(tl.where(kind == _SUM, 2 * WINDOW, place), axis=0)


def state_words(n: int) -> int:
    """Return how many int64 words a scan of n elements needs."""
    return 1 + -(-n // SCAN_BLOCK)


def scan(n: int, state: Any) -> Any:
    """Return the launch of an inclusive prefix sum of int32; the state is zero before the first."""
    tiles = triton.cdiv(n, SCAN_BLOCK)

    def launch(x: Any, out: Any) -> None:
        scan_kernel[(tiles,)](
            x, out, state, n, tiles, BLOCK=SCAN_BLOCK, WINDOW=WINDOW, num_warps=SCAN_WARPS
        )

    return launch
