"""Products of fp8 with a scale for each block: of one matrix, or of the experts of a mixture."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite.gpu import sm_count

BLOCK = tl.constexpr(128)  # values of k that have a scale, and columns of w
BAND = tl.constexpr(16)


@triton.jit
def place_of(tile, ends, tiles, begins, tiles_n, GROUPS: tl.constexpr):
    """Return a tile's group, where that begins, and its row and column of tiles in there.

    A group's tiles follow one another; BAND rows of them walk the columns together, so that their
    tiles of w stay in L2.
    """
    each = tl.arange(0, GROUPS)
    group = tl.sum((ends * tiles_n <= tile).to(tl.int32))
    mine = each == group
    tiles_m = tl.sum(tl.where(mine, tiles, 0))
    local = tile - tl.sum(tl.where(mine, ends - tiles, 0)) * tiles_n
    first = local // (BAND * tiles_n) * BAND
    rows = tl.minimum(tiles_m - first, BAND)
    inside = local % (BAND * tiles_n)
    return group, tl.sum(tl.where(mine, begins, 0)), first + inside % rows, inside // rows


@triton.jit
def block_gemm_kernel(
    x_desc, w_desc, y_ptr, x_scale, w_scale, begin_ptr, count_ptr, groups, part, n, k,
    GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write x [rows, k] times w [group, n, k], transposed, to y [rows, n].

    Group g has the ``count[g]`` rows from ``begin[g]`` on. Scales of x are [rows / part, k / 128,
    part], those of w [group, n / 128, k / 128]. Each 128 values of k are summed on their own and
    scaled into fp32: on Hopper the tensor cores keep 14 bits of a sum.
    """
    each = tl.arange(0, GROUPS)
    begins = tl.load(begin_ptr + each, mask=each < groups, other=0)
    counts = tl.load(count_ptr + each, mask=each < groups, other=0)
    tiles = tl.cdiv(counts, BLOCK_M)
    ends = tl.cumsum(tiles)
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = k // BLOCK
    for tile in range(tl.program_id(0), tl.sum(tiles) * tiles_n, tl.num_programs(0)):
        group, begin, tile_m, tile_n = place_of(tile, ends, tiles, begins, tiles_n, GROUPS)
        row = begin + tile_m * BLOCK_M
        end = begin + tl.sum(tl.where(each == group, counts, 0))
        column = tile_n * BLOCK_N
        at = row + tl.arange(0, BLOCK_M)
        x_scales = x_scale + row // part * steps * part + (at - row // part * part)
        w_scales = w_scale + (group * tl.cdiv(n, BLOCK) + column // BLOCK) * steps
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        factor = tl.load(x_scales, mask=at < end, other=0.0) * tl.load(w_scales)
        for step in range(steps):
            x = x_desc.load([row, step * BLOCK])
            w = w_desc.load([group * n + column, step * BLOCK])
            # Asked for before the product, which takes as long as they do.
            ahead = tl.minimum(step + 1, steps - 1)
            of_x = tl.load(x_scales + ahead * part, mask=at < end, other=0.0)
            of_w = tl.load(w_scales + ahead)
            sums += tl.dot(x, w.T) * factor[:, None]
            factor = of_x * of_w
        columns = column + tl.arange(0, BLOCK_N)
        seen = (at[:, None] < end) & (columns[None, :] < n)
        places = y_ptr + at[:, None].to(tl.int64) * n + columns[None, :]
        tl.store(places, sums.to(y_ptr.dtype.element_ty), mask=seen)


def settings(rows: int) -> tuple[tuple[int, int], int, int, int]:
    """Return a tile, stages, warps and programs a multiprocessor, by the rows of one matrix."""
    if rows <= 128:  # bound by reading w, of which much is to be under way  # noqa: PLR2004
        return (64, 128), 4, 4, 2
    if rows <= 1024:  # noqa: PLR2004
        return (64, 128), 3, 4, 3
    return (128, 128), 4, 8, 1


def launch(begins: torch.Tensor, counts: torch.Tensor, *, rows: int) -> Any:
    """Return ``launch(x, x_scale, w, w_scale, y)``, for matrices of about so many rows each.

    Matrix g has the ``counts[g]`` rows from ``begins[g]`` on; k is a multiple of 128.
    """
    (block_m, block_n), stages, warps, each = settings(rows)
    programs = each * sm_count(begins.device.type)

    def run(x: Any, x_scale: Any, w: Any, w_scale: Any, y: torch.Tensor) -> None:
        groups, n, k = w.shape
        block_gemm_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [block_m, 128]),
            TensorDescriptor.from_tensor(w.view(groups * n, k), [block_n, 128]),
            y, x_scale, w_scale, begins, counts, groups, x_scale.shape[2], n, k,
            GROUPS=triton.next_power_of_2(groups), BLOCK_M=block_m, BLOCK_N=block_n,
            num_stages=stages, num_warps=warps,
        )  # fmt: skip

    return run
