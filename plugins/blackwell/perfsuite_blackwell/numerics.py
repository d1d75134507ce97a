"""What each block-scaled format keeps of a matrix: no GPU is needed, the numbers are exact."""

import math
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from perfsuite import Inspection, Metric, Regime, case
from perfsuite.gpu import torch
from perfsuite_blackwell.formats import FORMATS, SCALE_LARGEST, Format, values_of
from perfsuite_blackwell.quantise import (
    Quantised,
    dequantise,
    element_codes,
    pack,
    quantise,
    scale_values,
)

ROWS, COLUMNS = 64, 512
OUTLIER = 37  # the column that is far larger than the others
_GAIN = 64.0
_SEED = 20260
_LARGEST_SCALE = {"e4m3": 126, "e8m0": 254}  # codes: the next one is NaN
_DIGITS = 6  # decimal places of a dB: libraries differ in the last bit of a logarithm

METRICS = (
    Metric("sqnr_db", "dB", better="higher", threshold=1e-4),
    Metric("bulk_sqnr_db", "dB", better="higher", threshold=1e-4),
    Metric("flushed", "values"),
    Metric("saturated", "values"),
    Metric("max_code", "", better="equal"),
    Metric("bits_per_value", "bits"),
)


@case(
    smoke={"data": "outlier", "format": ["nvfp4", "mxfp8"]},
    nightly={"data": ["normal", "outlier"], "format": [*FORMATS]},
    metrics=METRICS,
    regime=Regime.EXACT,
    tags=["quantisation", "numerics"],
    source="OCP Microscaling Formats (MX) v1.0; FP4 and FP8: chapters 6 and 10 of the book",
)
def numerics(ctx: Any, *, data: str, format: str) -> Inspection:  # noqa: A002
    """Quantise a matrix and take it back: how much of it is left, and for how many bits.

    ``sqnr_db`` is the energy of the matrix over that of the error, ``bulk_sqnr_db`` the same
    without one column, which is 64 times as large as the others in ``outlier``. An outlier carries
    most of the energy, so the first says little about the values that share a block with it, and
    lose theirs: ``flushed`` counts values that became zero. In blocks of 16 there are half as many
    as in blocks of 32. ``saturated`` counts values beyond the largest that their block can say,
    since its scale was rounded down. ``max_code`` is the largest code that is used.

    The matrix is the same to the bit everywhere: it comes from raw 64-bit words of PCG64, added up
    as integers. The reference looks for the nearest value in each format's table, in Python.
    """
    form = FORMATS[format]
    return Inspection(
        read=lambda: _kept(matrix(data), quantise(matrix(data), form), form),
        reference=lambda: _searched(data, form),
        wrong=lambda: _wrong(data, form),
    )


def matrix(data: str) -> Any:
    """Return the matrix in bf16, by rows: sums of twelve uniform numbers, nearly normal."""
    import numpy as np

    words = np.random.PCG64(_SEED).random_raw(3 * ROWS * COLUMNS)
    parts = words.view(np.uint16).reshape(ROWS * COLUMNS, 12).astype(np.int64)
    values = (parts.sum(axis=1) - 12 * 32768).astype(np.float64) / 65536
    x = torch.from_numpy(values.reshape(ROWS, COLUMNS)).to(torch.bfloat16)
    if data == "outlier":
        x[:, OUTLIER] *= _GAIN
    return x


def _wrong(data: str, form: Format) -> Mapping[str, float]:
    """Give each block the next larger scale, as one does that rounds scales up twice."""
    x = matrix(data)
    right = quantise(x, form)
    larger = (right.scales + 1).clamp_max(_LARGEST_SCALE[form.scale])
    steps = scale_values(larger, form) * right.factor
    quotients = x.float().view(*larger.shape, form.block) / steps[..., None]
    codes = pack(element_codes(quotients, form).view(x.shape), form)
    return _kept(x, Quantised(codes, larger, right.factor), form)


def _kept(x: Any, quantised: Any, form: Format) -> Mapping[str, float]:
    """Return the metrics of a matrix in torch's codes."""
    back = dequantise(quantised, form).double() * quantised.factor.double()
    stored = quantised.codes.nbytes + quantised.scales.nbytes
    largest = quantised.codes & 0x7F
    if form.bits == 4:  # noqa: PLR2004
        largest = (quantised.codes & 7).maximum(quantised.codes >> 4 & 7)
    saturated = (x.double().abs() > _steps(quantised, form) * form.largest).sum()
    both = x.double().flatten().tolist(), back.flatten().tolist()
    return _metrics(*both, saturated, largest.max(), 8 * stored / x.numel())


def _steps(quantised: Any, form: Format) -> Any:
    steps = scale_values(quantised.scales, form).double() * quantised.factor.double()
    return steps.repeat_interleave(form.block, dim=1)


def _searched(data: str, form: Format) -> Mapping[str, float]:
    """Return the metrics of the same matrix in codes found one by one."""
    rows = matrix(data).double().tolist()
    values = [value for row in rows for value in row]
    factor = factor_of(values, form)
    found = [search(row, form, factor) for row in rows]
    scales = values_of(form.scale)
    half = len(values_of(form.element)) // 2
    saturated = 0
    for row, each in zip(rows, found, strict=True):
        limits = [scales[code] * factor * form.largest for code in each.scales]
        saturated += sum(abs(value) > limits[i // form.block] for i, value in enumerate(row))
    most = max(code % half for each in found for code in each.codes)
    back = [value for each in found for value in each.values]
    return _metrics(values, back, saturated, most, form.bits_per_value)


def _metrics(
    x: Sequence[float], y: Sequence[float], saturated: Any, max_code: Any, bits_per_value: float
) -> Mapping[str, float]:
    """Return the metrics; ``math.fsum`` is exact, so that the order of summing changes nothing."""
    bulk = [i for i in range(len(x)) if i % COLUMNS != OUTLIER]
    return {
        "sqnr_db": _decibels(x, y),
        "bulk_sqnr_db": _decibels([x[i] for i in bulk], [y[i] for i in bulk]),
        "flushed": float(sum(a != 0 and b == 0 for a, b in zip(x, y, strict=True))),
        "saturated": float(saturated),
        "max_code": float(max_code),
        "bits_per_value": bits_per_value,
    }


def _decibels(x: Sequence[float], y: Sequence[float]) -> float:
    signal = math.fsum(a * a for a in x)
    noise = math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))
    return round(10 * math.log10(signal / noise), _DIGITS)


class Searched(NamedTuple):
    """A row in codes: each element's code, each block's scale code, and the values they mean."""

    codes: list[int]
    scales: list[int]
    values: list[float]


def factor_of(values: Sequence[float], form: Format) -> float:
    """Return the tensor's factor: its largest magnitude over what a code can say, in fp32."""
    if not form.has_factor:
        return 1.0
    exact = max(map(abs, values)) / (form.largest * SCALE_LARGEST)
    return float(struct.unpack("f", struct.pack("f", exact))[0])  # as fp32


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
