"""Turns matrices into block-scaled codes and back, by the bits of their numbers."""

from typing import Any, NamedTuple

from perfsuite.gpu import torch
from perfsuite_blackwell.formats import SCALE_LARGEST, Format

# cuBLAS documentation, 1D block scaling factors layout: the tensor cores take scales in tiles.
TILE_ROWS, TILE_BLOCKS = 128, 4


class Quantised(NamedTuple):
    """A matrix in codes: bytes (two e2m1 in each, the first one low), scales, and a factor.

    ``codes`` is rows x (columns x bits / 8) and ``scales`` rows x (columns / block), both uint8 and
    row-major; ``factor`` holds one fp32, 1 for formats without one.
    """

    codes: Any
    scales: Any
    factor: Any


def quantise(x: Any, form: Format) -> Quantised:
    """Return a bf16 or fp32 matrix in codes; columns are whole blocks.

    Scales of e8m0 are the largest power of two in the block's largest magnitude over that in the
    element's (OCP MX v1.0, section 6.3: what then lies above the largest element saturates). Those
    of e4m3 take the block's largest to the element's largest, after a factor has taken the
    tensor's largest to the largest of both.
    """
    rows, columns = x.shape
    if columns % form.block:
        raise ValueError(
            f"quantise: {columns} columns are no whole blocks of {form.block} ({form.name}); "
            "pad the matrix with zeros"
        )
    blocks = x.float().view(rows, columns // form.block, form.block)
    largest = blocks.abs().amax(dim=2)
    factor = torch.ones(1, dtype=torch.float32, device=x.device)
    if form.scale == "e8m0":
        scales = _powers_below(largest, form)
        steps = scale_values(scales, form)
    else:
        factor = (largest.max() / (form.largest * SCALE_LARGEST)).reshape(1)
        scales = e4m3_codes(largest / form.largest / factor.clamp_min(_TINY))
        steps = scale_values(scales, form) * factor
    # A block of zeros has the scale zero in e4m3.
    quotients = torch.where(steps[..., None] > 0, blocks / steps[..., None], 0.0)
    codes = pack(element_codes(quotients, form).view(rows, columns), form)
    return Quantised(codes, scales, factor)


_TINY = 2.0**-126  # the smallest normal fp32: a tensor of zeros has a factor too
_EMAX = {"e2m1": 2, "e4m3": 8}  # exponent of the largest element


def _powers_below(largest: Any, form: Format) -> Any:
    exponents = largest.view(torch.int32) >> 23  # biased by 127, as e8m0 is
    return (exponents - _EMAX[form.element]).clamp(0, 254).to(torch.uint8)


def element_codes(x: Any, form: Format) -> Any:
    """Return the codes nearest to fp32 values, ties to even, saturated; a byte each."""
    return e4m3_codes(x) if form.element == "e4m3" else _e2m1_codes(x)


def e4m3_codes(x: Any) -> Any:
    """Return the e4m3 codes nearest to fp32 values, ties to even, saturated."""
    # Past the largest there is NaN only.
    return x.clamp(-SCALE_LARGEST, SCALE_LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def _e2m1_codes(x: Any) -> Any:
    bits = x.contiguous().view(torch.int32)
    octave = ((bits >> 23 & 0xFF) - 127).clamp(0, 2)  # of 1, 2 and 4; below 1 steps are as above it
    steps = ((128 - octave) << 23).view(torch.float32)  # 2 to the power 1 - octave
    # Codes count on by two from octave to octave, and round to even as counts do.
    magnitude = ((x.abs().clamp_max(6.0) * steps).round().to(torch.int32) + 2 * octave).clamp_max(7)
    return (magnitude | (bits >> 28 & 8)).to(torch.uint8)


def element_values(codes: Any, form: Format) -> Any:
    """Return what unpacked codes stand for, in fp32."""
    if form.element == "e4m3":
        return codes.view(torch.float8_e4m3fn).float()
    code = codes.to(torch.int32)
    exponent, mantissa = code >> 1 & 3, code & 1
    normal = ((exponent + 126) << 23 | mantissa << 22).view(torch.float32)
    magnitude = torch.where(exponent > 0, normal, 0.5 * mantissa)
    return torch.where(code < 8, magnitude, -magnitude)  # noqa: PLR2004


def scale_values(scales: Any, form: Format) -> Any:
    """Return what the codes of scales stand for, in fp32."""
    if form.scale == "e4m3":
        return scales.view(torch.float8_e4m3fn).float()
    code = scales.to(torch.int32)
    # 2^-127 is no normal number in fp32.
    return torch.where(code > 0, code << 23, 1 << 22).view(torch.float32)


def pack(codes: Any, form: Format) -> Any:
    """Return codes of a byte each as they are stored: of 4 bits, two to a byte, the first low."""
    return codes if form.element == "e4m3" else codes[:, 0::2] | codes[:, 1::2] << 4


def unpack(codes: Any, form: Format) -> Any:
    """Undo ``pack``."""
    if form.element == "e4m3":
        return codes
    return torch.stack((codes & 15, codes >> 4), dim=2).view(codes.shape[0], -1)


def dequantise(matrix: Quantised, form: Format) -> Any:
    """Return the matrix that the codes stand for in fp32, but for its factor."""
    values = element_values(unpack(matrix.codes, form), form)
    blocks = values.view(*matrix.scales.shape, form.block)
    return (blocks * scale_values(matrix.scales, form)[..., None]).view(values.shape)


def tile_scales(scales: Any) -> Any:
    """Return scales as tensor cores take them: tiles of 128 rows by 4 blocks, 512 bytes each.

    Within a tile, rows 32 apart stand side by side: 32 lines of 4 x 4 bytes.
    """
    rows, blocks = scales.shape
    if rows % TILE_ROWS or blocks % TILE_BLOCKS:
        raise ValueError(
            f"tile_scales: {rows} x {blocks} scales are no whole tiles of "
            f"{TILE_ROWS} x {TILE_BLOCKS}; pad the matrix"
        )
    tall, wide = rows // TILE_ROWS, blocks // TILE_BLOCKS
    parts = scales.view(tall, 4, 32, wide, 4).permute(0, 3, 2, 1, 4)
    return parts.reshape(tall, wide, 32, 16)


def untile_scales(tiles: Any) -> Any:
    """Undo ``tile_scales``."""
    tall, wide = tiles.shape[:2]
    parts = tiles.view(tall, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return parts.reshape(tall * TILE_ROWS, wide * TILE_BLOCKS)
