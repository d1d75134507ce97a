"""The float64 oracles of the pack: matrix products, and codes found by looking in their tables."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from perfsuite_blackwell.formats import SCALE_LARGEST, Format, values_of

_REFERENCE_ROWS = 2048


def matmul(a: Any, b: Any) -> Any:
    """Return a @ b in float64, some rows of a at a time so that only b is held twice."""
    import torch

    out = torch.empty(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    wide = b.double()
    for start in range(0, a.shape[0], _REFERENCE_ROWS):
        part = slice(start, start + _REFERENCE_ROWS)
        torch.mm(a[part].double(), wide, out=out[part])
    return out


def matmul_bytes(m: int, n: int, k: int) -> int:
    """Return the bytes that ``matmul`` allocates at its peak."""
    return 8 * (k * n + m * n + min(m, _REFERENCE_ROWS) * k)


def look_up(codes: Any, tiles: Any, form: Format) -> Any:
    """Return the matrix that codes and tiled scales stand for in float64, by table and address."""
    import torch

    device = codes.device
    table = torch.tensor(values_of(form.element), dtype=torch.float64, device=device)
    code = codes.view(torch.uint8).long()
    values = table[code] if form.bits == 8 else table[code.unsqueeze(2) >> _nibbles(device) & 15]  # noqa: PLR2004
    values = values.reshape(codes.shape[0], -1)
    rows, columns = values.shape
    row = torch.arange(rows, device=device)[:, None]
    block = torch.arange(columns, device=device)[None, :] // form.block
    wide = columns // form.block // 4
    address = (
        (row // 128 * wide + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
    )
    scales = torch.tensor(values_of(form.scale), dtype=torch.float64, device=device)
    return values * scales[tiles.view(torch.uint8).flatten().long()[address]]


def _nibbles(device: Any) -> Any:
    import torch

    return torch.tensor([0, 4], device=device)


class Searched(NamedTuple):
    """A row in codes: each element's code, each block's scale code, and the values they mean."""

    codes: list[int]
    scales: list[int]
    values: list[float]


def factor_of(values: Sequence[float], form: Format) -> float:
    """Return the tensor's factor: its largest magnitude over what a code can say, in fp32."""
    if not form.has_factor:
        return 1.0
    return _as_fp32(max(map(abs, values)) / (form.largest * SCALE_LARGEST))


def search(row: Sequence[float], form: Format, factor: float) -> Searched:
    """Quantise a row by looking for the nearest value in each table, in float64."""
    found = Searched([], [], [])
    scales = values_of(form.scale)
    for start in range(0, len(row), form.block):
        block = row[start : start + form.block]
        code = scale_code(max(map(abs, block)), form, factor)
        found.scales.append(code)
        step = scales[code] * factor
        for value in block:
            element = nearest(value / step if step else 0.0, form.element)
            found.codes.append(element)
            found.values.append(values_of(form.element)[element] * step)
    return found


def scale_code(largest: float, form: Format, factor: float) -> int:
    """Return the code of a block's scale, from the largest magnitude in it."""
    if form.scale == "e4m3":
        return nearest(largest / form.largest / factor, "e4m3") if factor else 0
    powers = values_of("e8m0")
    wanted = largest / 2.0 ** math.floor(math.log2(form.largest))
    return max((code for code in range(255) if powers[code] <= wanted), default=0)


def nearest(value: float, kind: str) -> int:
    """Return the code whose value is nearest to this one; of two as near, the even code."""
    sorted_values = _magnitudes(kind)
    magnitude = min(abs(value), sorted_values[-1])
    above = bisect_left(sorted_values, magnitude)
    below = max(above - 1, 0)
    code = min((below, above), key=lambda each: (abs(sorted_values[each] - magnitude), each % 2))
    return code + (len(values_of(kind)) // 2 if math.copysign(1.0, value) < 0 else 0)


@cache
def _magnitudes(kind: str) -> tuple[float, ...]:
    half = values_of(kind)[: len(values_of(kind)) // 2]
    return tuple(value for value in half if not math.isnan(value))


def _as_fp32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
