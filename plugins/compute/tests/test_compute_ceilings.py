"""The variants that the core takes for ceilings exist, and compute what it thinks."""

from __future__ import annotations

import pytest
from perfsuite_compute import fma, fp8_gemm, gemm

from perfsuite import Case
from perfsuite.ceilings import OPERATION_CEILINGS

CASES: dict[str, Case] = {"gemm": gemm.gemm, "fp8_gemm": fp8_gemm.fp8_gemm, "fma": fma.fma}
LISTED = [
    (dtype, variant, n)
    for dtype, variants in OPERATION_CEILINGS.items()
    for variant, n in variants.items()
    if variant.startswith("compute.")
]


@pytest.mark.parametrize(("dtype", "variant", "done"), LISTED)
def test_ceiling_is_a_variant_that_does_so_much(dtype: str, variant: str, done: float) -> None:
    name, _, rest = variant.removeprefix("compute.").partition("[")
    case = CASES[name]
    texts = dict(each.split("=") for each in rest.removesuffix("]").split(","))
    axes = {axis: int(text) if text.isdigit() else text for axis, text in texts.items()}
    assert list(axes) == list(case.axes)
    assert all(value in case.axes[axis] for axis, value in axes.items())
    assert case.only is None or case.only(**axes)
    assert case.work is not None
    work = case.work(**axes)
    assert work.flops == done
    assert work.rate_dtype in {dtype, "bf16" if dtype == "fp16" else dtype}
