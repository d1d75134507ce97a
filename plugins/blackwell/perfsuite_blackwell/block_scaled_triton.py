"""A matrix multiplication of block-scaled operands in Triton: `tl.dot_scaled` on packed codes."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite_blackwell.formats import Format
from perfsuite_blackwell.gemm_triton import chip, tile_at
from perfsuite_blackwell.tiles import GROUP, scaled_tiles


@triton.jit
def _scales_at(desc, tile, step, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the scales of a tile as ROWS x BLOCKS, out of their tiles of 128 x 4."""
    TALL: tl.constexpr = ROWS // 128
    WIDE: tl.constexpr = BLOCKS // 4
    packed = desc.load([0, tile * TALL, step * WIDE, 0, 0])
    parts = packed.reshape(TALL, WIDE, 32, 4, 4)
    return parts.trans(0, 3, 2, 1, 4).reshape(ROWS, BLOCKS)


@triton.jit
def block_scaled_kernel(
    a_desc, a_scales, w_desc, w_scales, c_desc, factor, tiles_m, tiles_n, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ELEMENT: tl.constexpr,
    SCALED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write one tile of a @ w.T: codes of ELEMENT, a scale for SCALED of them, one factor."""
    tile_m, tile_n = tile_at(tl.program_id(0), tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M
    column = tile_n * BLOCK_N
    BYTES: tl.constexpr = BLOCK_K // 2 if ELEMENT == "e2m1" else BLOCK_K
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        a = a_desc.load([row, step * BYTES])
        w = w_desc.load([column, step * BYTES])
        a_scale = _scales_at(a_scales, tile_m, step, BLOCK_M, BLOCK_K // SCALED)
        w_scale = _scales_at(w_scales, tile_n, step, BLOCK_N, BLOCK_K // SCALED)
        sums = tl.dot_scaled(a, a_scale, ELEMENT, w.T, w_scale, ELEMENT, sums)
    sums *= tl.load(factor)
    c_desc.store([row, column], sums.to(c_desc.dtype))


def launcher(form: Format) -> Any:
    """Return ``launch(a, a_scales, w, w_scales, factor, c)``, which writes a @ w.T to c in bf16.

    Codes and tiled scales are bytes; m and n are multiples of the tile's, k of its step.
    """
    tiles = scaled_tiles(chip(), form.bits)
    scale_block = [1, tiles.m // 128, tiles.k // form.block // 4, 2, 256]
    packed = 8 // form.bits

    def launch(a: Any, a_scales: Any, w: Any, w_scales: Any, factor: Any, c: Any) -> None:
        if form.element == "e4m3":
            a, w = a.view(torch.float8_e4m3fn), w.view(torch.float8_e4m3fn)
        if form.scale == "e4m3":
            a_scales = a_scales.view(torch.float8_e4m3fn)
            w_scales = w_scales.view(torch.float8_e4m3fn)
        (m, k), n = a.shape, w.shape[0]
        tall, wide = a_scales.shape[:2]
        block_scaled_kernel[(m // tiles.m * (n // tiles.n),)](
            TensorDescriptor.from_tensor(a, [tiles.m, tiles.k // packed]),
            TensorDescriptor.from_tensor(a_scales.view(1, tall, wide, 2, 256), scale_block),
            TensorDescriptor.from_tensor(w, [tiles.n, tiles.k // packed]),
            TensorDescriptor.from_tensor(
                w_scales.view(1, n // 128, wide, 2, 256),
                [1, tiles.n // 128, *scale_block[2:]],
            ),
            TensorDescriptor.from_tensor(c, [tiles.m, tiles.n]),
            factor,
            m // tiles.m,
            n // tiles.n,
            k * packed // tiles.k,
            BLOCK_M=tiles.m,
            BLOCK_N=tiles.n,
            BLOCK_K=tiles.k,
            ELEMENT=form.element,
            SCALED=form.block,
            GROUP=GROUP,
            num_stages=tiles.stages,
            num_warps=tiles.warps,
        )

    return launch
