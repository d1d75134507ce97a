"""The block-scaled number formats, and what each code of them stands for, as plain numbers."""

import math
from dataclasses import dataclass
from functools import cache

_SIGNS = (1.0, -1.0)


@dataclass(frozen=True, slots=True)
class Format:
    """Elements that share a scale, a block at a time.

    ``element`` and ``scale`` name floating-point types by exponent and mantissa bits; ``block`` is
    how many elements share a scale, ``bits`` those of an element, ``largest`` its largest value.
    With ``has_factor`` the whole tensor has one more factor, in fp32.
    """

    name: str
    element: str
    bits: int
    largest: float
    block: int
    scale: str
    has_factor: bool

    @property
    def bits_per_value(self) -> float:
        """Bits of an element with its share of the scale, the tensor's factor left out."""
        return self.bits + 8 / self.block


# mxfp4 and mxfp8: OCP Microscaling Formats (MX) v1.0, section 5. nvfp4: NVIDIA, cuBLAS
# documentation, block scaling of narrow precisions.
FORMATS = {
    each.name: each
    for each in (
        Format("nvfp4", "e2m1", 4, 6.0, 16, "e4m3", has_factor=True),
        Format("mxfp4", "e2m1", 4, 6.0, 32, "e8m0", has_factor=False),
        Format("mxfp8", "e4m3", 8, 448.0, 32, "e8m0", has_factor=False),
    )
}
SCALE_LARGEST = 448.0  # of an e4m3 scale


@cache
def values_of(kind: str) -> tuple[float, ...]:
    """Return what each code of e2m1, e4m3 or e8m0 stands for, NaN where it is no number."""
    if kind == "e8m0":
        return (*(2.0 ** (code - 127) for code in range(255)), math.nan)
    exponents, mantissas, bias = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7)}[kind]
    positive = [
        _value(exponent, mantissa / 2**mantissas, bias)
        for exponent in range(2**exponents)
        for mantissa in range(2**mantissas)
    ]
    if kind == "e4m3":
        positive[-1] = math.nan
    return tuple(sign * value for sign in _SIGNS for value in positive)


def _value(exponent: int, fraction: float, bias: int) -> float:
    if exponent == 0:
        return fraction * 2.0 ** (1 - bias)
    return (1 + fraction) * 2.0 ** (exponent - bias)
