"""Codes of mxfp8, mxfp4 and nvfp4, and their scales in the order of cuBLAS, in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

# Rows of a program, blocks of each, and warps, by the bits of a code and the numbers of a block.
SETTINGS = {(8, 32): (32, 4, 4), (4, 32): (32, 4, 4), (4, 16): (64, 4, 2)}


@triton.jit
def _e2m1(values, step):
    """Return the codes of e2m1 nearest to values / step, half way the even one, as int32."""
    size = tl.abs(values)
    # Of the eight codes the upper four, of those the upper two, and of those the upper one.
    upper = size >= 1.75 * step
    second = size >= tl.where(upper, 3.5 * step, 0.75 * step)
    two = tl.where(second, 5.0 * step, 2.5 * step)
    last = size > tl.where(upper, two, tl.where(second, 1.25 * step, 0.25 * step))
    sign = (values.to(tl.int32, bitcast=True) >> 28) & 8
    return sign | (upper.to(tl.int32) << 2) | (second.to(tl.int32) << 1) | last.to(tl.int32)


@triton.jit
def mx_quantize_kernel(
    x, sizes, codes, scales, cols, ROWS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Write codes and scales of ROWS x BLOCKS blocks: mxfp8 and mxfp4 of 32 numbers, nvfp4 of 16.

    Scales lie in tiles of 128 rows by 4 blocks; in a tile, rows 32 apart stand side by side.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    COLS: tl.constexpr = BLOCKS * BLOCK
    first = row.to(tl.int64)[:, None] * cols + tl.program_id(0) * COLS
    values = tl.load(x + first + tl.arange(0, COLS)[None, :]).to(tl.float32)
    blocks = tl.reshape(values, (ROWS, BLOCKS, BLOCK))
    largest = tl.max(tl.abs(blocks), 2)
    if BLOCK == 32:  # noqa: PLR2004 - a power of two
        # That in the largest, over that in the largest code: 2^8 of e4m3, 2^2 of e2m1.
        POWER: tl.constexpr = BITS if BITS == 8 else 2  # noqa: PLR2004
        scale = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - POWER, 0)
    else:
        # The nearest number of 4 bits: e4m3, whose exponents lie 120 below those of fp32.
        wanted = tl.clamp(largest * tl.load(sizes), 0.015625, 448.0).to(tl.int32, bitcast=True)
        top = (wanted + 0x7FFFF + ((wanted >> 20) & 1)) >> 20
        scale = top - (120 << 3)
    if BITS == 8:  # noqa: PLR2004 - e4m3
        factor = ((254 - scale) << 23).to(tl.float32, bitcast=True)
        scaled = tl.clamp(blocks * factor[:, :, None], -448.0, 448.0)
        code = tl.reshape(scaled, (ROWS, COLS)).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(codes + first + tl.arange(0, COLS)[None, :], code)
    else:
        if BLOCK == 32:  # noqa: PLR2004
            # Code 0 is 2^-127, which fp32 has no exponent for.
            step = tl.maximum(scale << 23, 1 << 22).to(tl.float32, bitcast=True)
        else:
            step = (top << 20).to(tl.float32, bitcast=True) * tl.load(sizes + 1)
        pairs = tl.reshape(_e2m1(blocks, step[:, :, None]), (ROWS, COLS // 2, 2))
        low, high = tl.split(pairs)
        tl.store(
            codes + first // 2 + tl.arange(0, COLS // 2)[None, :], (low | (high << 4)).to(tl.uint8)
        )
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    tile = (row // 128 * (cols // (4 * BLOCK)))[:, None] + (block // 4)[None, :]
    inside = (row % 32 * 16 + row % 128 // 32 * 4)[:, None] + (block % 4)[None, :]
    tl.store(scales + tile * 512 + inside, scale.to(tl.uint8))


def quantise(x: Any, sizes: Any, codes: Any, scales: Any) -> None:
    """Write codes [rows, bytes] and scales [rows / 128, blocks / 4, 32, 16] of x [rows, cols].

    ``sizes`` are what nvfp4's scales are multiplied by before they are rounded, and what they
    then count. Rows are a multiple of 128, columns of 128.
    """
    rows, cols = x.shape
    bits = 8 * codes.shape[1] // cols
    block = rows * cols // scales.numel()
    height, blocks, warps = SETTINGS[bits, block]
    mx_quantize_kernel[(cols // (blocks * block), rows // height)](
        x, sizes, codes, scales, cols, ROWS=height, BLOCKS=blocks, BLOCK=block, BITS=bits,
        num_warps=warps,
    )  # fmt: skip
