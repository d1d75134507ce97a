"""The largest of many, in one pass and two short kernels, in Triton; n <= 2**28."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

# Elements of a block whose largest is noted.
MAXIMUM_BLOCK, MAXIMUM_WARPS = 32768, 8
# Blocks of an array of 2^28: each program that chooses among their maxima holds all of them.
RANK_BLOCK, RANK_WARPS = 8192, 8
# Blocks that are searched again, one a program; at least K, and the closer the more steps it takes.
MOST = 128
# Candidates that are ranked by comparing each with each; of 250 arrays of normal numbers one has
# more, which then takes longer.
FEW = 128

_LEAST = tl.constexpr(-(2**31))


@triton.jit
def _ordered(bits):
    """Turn a float's bits into a whole number of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def maximum_kernel(x_ptr, maxima_ptr, count_ptr, n, BLOCK: tl.constexpr):
    """Write a block's largest element as a key, and that there are no candidates yet."""
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    if block * BLOCK <= n - BLOCK:
        largest = tl.max(tl.load(x_ptr + offsets), axis=0)
    else:
        largest = tl.max(tl.load(x_ptr + offsets, mask=offsets < n, other=float("-inf")), axis=0)
    tl.store(maxima_ptr + block, _ordered(largest.to(tl.int32, bitcast=True)))
    if block == 0:
        tl.store(count_ptr, 0)


@triton.jit
def candidates_kernel(
    x_ptr, maxima_ptr, list_ptr, count_ptr, floor_ptr, n, blocks, K: tl.constexpr,
    PARENT: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Write a key that K elements reach, and list those above it in one of the blocks with any."""
    numbers = tl.arange(0, RANK)
    keys = tl.load(maxima_ptr + numbers, mask=numbers < blocks, other=_LEAST)
    low = _floor_of(keys, K, RANK, MOST)
    program = tl.program_id(0)
    if program == 0:
        tl.store(floor_ptr, low)
    above = (keys > low).to(tl.int32)
    is_mine = (tl.cumsum(above, axis=0) == program + 1) & (above == 1)
    if program < tl.sum(above, axis=0):
        block = tl.sum(tl.where(is_mine, numbers, 0), axis=0)
        offsets = block * PARENT + tl.arange(0, PARENT)
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=float("-inf"))
        _list_largest(_ordered(x.to(tl.int32, bitcast=True)), low, list_ptr, count_ptr, K)


@triton.jit
def _floor_of(keys, K: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr):
    """Return a key that K of the keys reach and no more than MOST exceed, by halving."""
    # Each of K groups has a key that reaches the least of the groups' largest.
    low = tl.min(tl.max(tl.reshape(keys, (RANK // K, K)), axis=0), axis=0)
    high = tl.max(keys, axis=0)
    above = tl.sum((keys > low).to(tl.int32), axis=0)
    while above > MOST:
        middle = ((low.to(tl.int64) + high + 1) >> 1).to(tl.int32)
        is_reached = tl.sum((keys >= middle).to(tl.int32), axis=0) >= K
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle - 1)
        above = tl.sum((keys > low).to(tl.int32), axis=0)
    return low


@triton.jit
def _list_largest(keys, low, list_ptr, count_ptr, K: tl.constexpr):
    """Append the keys above low to the list, the largest first and K at most."""
    lanes = tl.arange(0, K)
    left = K + low * 0
    largest = tl.max(keys, axis=0)
    while (largest > low) & (left > 0):
        is_largest = keys == largest
        count = tl.minimum(tl.sum(is_largest.to(tl.int32), axis=0), left)
        at = tl.atomic_add(count_ptr, count, sem="relaxed")
        tl.store(list_ptr + at + lanes, largest + lanes * 0, mask=lanes < count)
        keys = tl.where(is_largest, _LEAST, keys)
        left -= count
        largest = tl.max(keys, axis=0)


@triton.jit
def top_kernel(
    list_ptr, count_ptr, floor_ptr, out_ptr, K: tl.constexpr, FEW: tl.constexpr, ALL: tl.constexpr
):
    """Write the K largest of the listed keys in falling order, then the key that K reach."""
    count = tl.load(count_ptr)
    low = tl.load(floor_ptr)
    if count <= FEW:
        _rank(list_ptr, count, low, out_ptr, K, FEW)
    else:
        _take_largest(list_ptr, count, low, out_ptr, K, ALL)


@triton.jit
def _rank(
    list_ptr, count, low, out_ptr, K: tl.constexpr, FEW: tl.constexpr, AT_ONCE: tl.constexpr = 8,
):  # fmt: skip
    """Write each key to the place that as many keys as come before it give it."""
    lanes = tl.arange(0, FEW)[None, :]
    ours = tl.load(list_ptr + lanes, mask=lanes < count, other=low)
    larger = tl.zeros((AT_ONCE, FEW), tl.int32)
    for start in tl.static_range(0, FEW, AT_ONCE):
        others = start + tl.arange(0, AT_ONCE)[:, None]
        theirs = tl.load(list_ptr + others, mask=others < count, other=low)
        larger += ((theirs > ours) | ((theirs == ours) & (others < lanes))).to(tl.int32)
    rank = tl.sum(larger, axis=0)[None, :]
    tl.store(out_ptr + rank, _ordered(ours).to(tl.float32, bitcast=True), mask=rank < K)


@triton.jit
def _take_largest(list_ptr, count, low, out_ptr, K: tl.constexpr, ALL: tl.constexpr):
    lanes, places = tl.arange(0, ALL), tl.arange(0, K)
    keys = tl.load(list_ptr + lanes, mask=lanes < count, other=low)
    done = count * 0
    while done < K:
        largest = tl.max(keys, axis=0)
        is_largest = keys == largest
        found = tl.sum(is_largest.to(tl.int32), axis=0)
        value = _ordered(largest + places * 0).to(tl.float32, bitcast=True)
        tl.store(out_ptr + places, value, mask=(places >= done) & (places < done + found))
        keys = tl.where(is_largest, _LEAST, keys)
        done += found


def top(n: int, k: int, empty: Any) -> Any:
    """Return the launch that writes the k largest of n float32 in falling order.

    ``empty(count)`` returns int32 scratch.
    One pass notes the largest of each block. What k of these reach, k elements reach: only blocks
    with a larger one are searched again, and what is not found there are elements equal to it.
    """
    blocks = triton.cdiv(n, MAXIMUM_BLOCK)
    maxima, listed = empty(blocks), empty(MOST * k)
    count, floor = empty(1), empty(1)

    def launch(x: Any, out: Any) -> None:
        maximum_kernel[(blocks,)](x, maxima, count, n, BLOCK=MAXIMUM_BLOCK, num_warps=MAXIMUM_WARPS)
        candidates_kernel[(MOST,)](
            x, maxima, listed, count, floor, n, blocks,
            K=k, PARENT=MAXIMUM_BLOCK, RANK=RANK_BLOCK, MOST=MOST, num_warps=RANK_WARPS,
        )  # fmt: skip
        top_kernel[(1,)](listed, count, floor, out, K=k, FEW=FEW, ALL=MOST * k, num_warps=8)

    return launch
