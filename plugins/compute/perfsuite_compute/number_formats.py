"""What narrow number formats keep of a tensor: exact numbers, no GPU needed."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite import Inspection, Metric, Regime, case
from perfsuite.gpu import torch
from perfsuite_compute.fp64_emulation import power

ROWS, COLUMNS = 16, 512
OUTLIER, GAIN = 37, 64.0  # a column, and how much larger than the others it is made
_SEED, _DIGITS = 20261, 6  # decimal places of a dB: libraries differ in the last bit of a logarithm


@dataclass(frozen=True, slots=True)
class Format:
    """A format of ``exponent`` and ``mantissa`` bits (integers: none and those of the magnitude).

    ``block`` numbers share a scale (0: the whole tensor) of ``scale_bits``: fp32 (32), fp16 (16),
    or 8, a power of two (``is_power``) or e4m3 under a factor of the tensor.
    """

    exponent: int
    mantissa: int
    largest: float
    block: int = 0
    scale_bits: int = 0
    is_power: bool = False

    @property
    def bits(self) -> float:
        """Bits of a number with its share of the scale."""
        shared = self.scale_bits / self.block if self.block else 0
        return 1 + self.exponent + self.mantissa + shared

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 2 - 2 ** (self.exponent - 1) if self.exponent else self.mantissa


# fp8: Micikevicius et al., FP8 Formats for Deep Learning; mx: OCP Microscaling Formats (MX) v1.0;
# nvfp4: NVIDIA, cuBLAS documentation; int4: groups of 128 with a scale in fp16, as GPTQ and AWQ.
FORMATS = {
    "bf16": Format(8, 7, 2.0**127 * (2 - 2**-7)),
    "fp8_e4m3": Format(4, 3, 448.0, scale_bits=32),
    "fp8_e5m2": Format(5, 2, 57344.0, scale_bits=32),
    "mxfp6_e2m3": Format(2, 3, 7.5, 32, 8, is_power=True),
    "mxfp6_e3m2": Format(3, 2, 28.0, 32, 8, is_power=True),
    "mxfp4": Format(2, 1, 6.0, 32, 8, is_power=True),
    "nvfp4": Format(2, 1, 6.0, 16, 8),
    "int4": Format(0, 3, 7.0, 128, 16),
}
_E4M3 = FORMATS["fp8_e4m3"]
_DECIBELS = ("sqnr_db", "outlier_sqnr_db", "product_sqnr_db")
Rows = list[list[float]]
Quantise = Callable[[Rows, Format], Rows]


@case(
    smoke={"format": "int4"},
    nightly={"format": list(FORMATS)},
    metrics=[
        *(Metric(name, "dB", better="higher", threshold=1e-4) for name in _DECIBELS),
        Metric("bits_per_value", "bits"),
    ],
    regime=Regime.EXACT,
    tags=["quantisation", "numerics"],
    source="formats below bf16: chapters 6 and 10 of the book; OCP Microscaling Formats v1.0",
)
def number_formats(ctx: Any, *, format: str) -> Inspection:  # noqa: A002
    """Quantise a matrix and take it back: how much is left, and for how many bits.

    ``sqnr_db`` is the energy of nearly normal numbers over that of the error.
    ``outlier_sqnr_db`` is the same where one column is 64 times as large, for all the others:
    formats of few exponents, and integers most, drown what shares a scale with it; the smaller the
    block, the less that is. ``product_sqnr_db`` is that of a product of two quantised matrices.
    The reference finds the nearest value in a table, in Python; data come from raw words of PCG64.
    """
    form = FORMATS[format]
    return Inspection(
        read=lambda: _metrics(quantised, form),
        reference=lambda: _metrics(searched, form),
        wrong=lambda: _metrics(_with_scale_of_next_block, form),
    )


def matrices(*, is_outlying: bool) -> tuple[Rows, Rows]:
    """Return two matrices of sums of twelve uniform numbers, to the bit the same everywhere."""
    import numpy as np

    count = 2 * ROWS * COLUMNS
    words = np.random.PCG64(_SEED).random_raw(3 * count).view(np.uint16)
    values = (words.reshape(count, 12).astype(np.int64).sum(axis=1) - 12 * 32768) / 65536
    a, b = values.reshape(2, ROWS, COLUMNS)
    if is_outlying:
        a[:, OUTLIER] *= GAIN
    return a.tolist(), b.tolist()


def quantised(rows: Rows, form: Format) -> Rows:
    """Return what is left of a matrix, by the exponents of its numbers, in torch."""
    blocks = _blocks(rows, form)
    return _back(blocks, _steps(blocks, form), form)


def _with_scale_of_next_block(rows: Rows, form: Format) -> Rows:
    """Take each block's scale from the block after it; of a whole tensor, a third of its own."""
    blocks = _blocks(rows, form)
    steps = _steps(blocks, form)
    return _back(blocks, steps.roll(1, 0) if form.block else steps / 3, form)


def _blocks(rows: Rows, form: Format) -> Any:
    return torch.tensor(rows, dtype=torch.float64).view(-1, form.block or ROWS * COLUMNS)


def _back(blocks: Any, steps: Any, form: Format) -> Rows:
    result: Rows = (_nearest(blocks / steps, form) * steps).view(ROWS, COLUMNS).tolist()
    return result


def _steps(blocks: Any, form: Format) -> Any:
    """Return the scale of each block."""
    largest = blocks.abs().amax(dim=1, keepdim=True)
    if not form.scale_bits:
        return torch.ones_like(largest)
    if form.is_power:
        exponent = torch.frexp(largest).exponent - math.frexp(form.largest)[1]
        return power(exponent)
    exact = largest / form.largest
    if form.scale_bits == 8:  # noqa: PLR2004 - e4m3 under a factor
        factor = (exact.max() / _E4M3.largest).float().double()
        return _nearest(exact / factor, _E4M3) * factor
    kind = torch.float16 if form.scale_bits == 16 else torch.float32  # noqa: PLR2004
    return exact.to(kind).double()


def _nearest(x: Any, form: Format) -> Any:
    """Return the nearest numbers of the format, ties to even, saturated."""
    exponent = (torch.frexp(x).exponent - 1).clamp_min(form.least_exponent)
    unit = power(exponent - form.mantissa) if form.exponent else torch.ones_like(x)
    return ((x / unit).round() * unit).clamp(-form.largest, form.largest)


def values_of(form: Format) -> list[float]:
    """Return the format's numbers that are not negative, in order: those of codes 0, 1, 2..."""
    if not form.exponent:
        return [float(code) for code in range(int(form.largest) + 1)]
    fractions = range(2**form.mantissa)
    low = form.least_exponent
    values = [fraction * 2.0 ** (low - form.mantissa) for fraction in fractions]
    exponent = low
    while values[-1] < form.largest:
        values += [(1 + f / 2**form.mantissa) * 2.0**exponent for f in fractions]
        exponent += 1
    return [value for value in values if value <= form.largest]


def searched(rows: Rows, form: Format) -> Rows:
    """Return what is left of a matrix, each number found in the format's table."""
    flat, size = [value for row in rows for value in row], form.block or ROWS * COLUMNS
    blocks = [flat[start : start + size] for start in range(0, len(flat), size)]
    exact = [max(map(abs, block)) / form.largest for block in blocks]
    table = values_of(form)
    back = [
        _found(value / step, table) * step
        for block, step in zip(blocks, _searched_steps(exact, blocks, form), strict=True)
        for value in block
    ]
    return [back[start : start + COLUMNS] for start in range(0, len(back), COLUMNS)]


def _searched_steps(
    exact: Sequence[float], blocks: Sequence[Sequence[float]], form: Format
) -> list[float]:
    import numpy as np

    if not form.scale_bits:
        return [1.0] * len(blocks)
    if form.is_power:
        top = math.floor(math.log2(form.largest))
        return [2.0 ** (math.floor(math.log2(max(map(abs, block)))) - top) for block in blocks]
    if form.scale_bits == 8:  # noqa: PLR2004
        factor = float(np.float32(max(exact) / _E4M3.largest))
        table = values_of(_E4M3)
        return [_found(step / factor, table) * factor for step in exact]
    kind = np.float16 if form.scale_bits == 16 else np.float32  # noqa: PLR2004
    return [float(kind(step)) for step in exact]


def _found(value: float, table: Sequence[float]) -> float:
    size = abs(value)
    above = bisect_left(table, size)
    if above == len(table):
        return math.copysign(table[-1], value)
    if above and 2 * size <= table[above] + table[above - 1]:
        # Half way between two, the one with the even code.
        is_tie = 2 * size == table[above] + table[above - 1]
        above -= not (is_tie and above % 2 == 0)
    return math.copysign(table[above], value)


def _metrics(quantise: Quantise, form: Format) -> Mapping[str, float]:
    (a, b), (outlying, _) = matrices(is_outlying=False), matrices(is_outlying=True)
    kept_a, kept_b = quantise(a, form), quantise(b, form)
    return {
        "sqnr_db": _decibels(a, kept_a),
        "outlier_sqnr_db": _decibels(_others(outlying), _others(quantise(outlying, form))),
        "product_sqnr_db": _decibels(_product(a, b), _product(kept_a, kept_b)),
        "bits_per_value": form.bits,
    }


def _others(rows: Rows) -> Rows:
    return [row[:OUTLIER] + row[OUTLIER + 1 :] for row in rows]


def _product(a: Rows, b: Rows) -> Rows:
    """Return a times the transpose of b; ``math.fsum`` is exact in any order."""
    return [[math.fsum(x * y for x, y in zip(u, v, strict=True)) for v in b] for u in a]


def _decibels(x: Rows, y: Rows) -> float:
    signal = math.fsum(a * a for row in x for a in row)
    pairs = (pair for u, v in zip(x, y, strict=True) for pair in zip(u, v, strict=True))
    noise = math.fsum((a - b) ** 2 for a, b in pairs)
    return round(10 * math.log10(signal / noise), _DIGITS)
