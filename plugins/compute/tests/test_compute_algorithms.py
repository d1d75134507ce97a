"""Sparse, emulated and Strassen multiplication: right on the CPU, exact where they are exact."""

from __future__ import annotations

from typing import Any

import pytest
from perfsuite_compute import fp64_emulation, matrices, sparse24, strassen

import perfsuite

torch = pytest.importorskip("torch")
CASES = {each.name: each for each in matrices.cases() if isinstance(each, perfsuite.Case)}


def _check(name: str, **axes: Any) -> float | None:
    """Check a variant on the CPU; its mistake is refused there, too."""
    from perfsuite.check import check
    from perfsuite.device import open_device

    device = open_device("cpu")
    workload = CASES[name].build(device.context(3), **axes)
    assert isinstance(workload, perfsuite.Workload)
    return check(device, workload, where=name, seed=3)


def _normal(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_pruning_keeps_the_larger_two_of_each_four() -> None:
    w = torch.tensor([[1.0, -4.0, 0.5, 3.0, -0.1, 0.2, 9.0, -8.0]])
    assert sparse24.pruned(w).tolist() == [[0.0, -4.0, 0.0, 3.0, 0.0, 0.0, 9.0, -8.0]]


@pytest.mark.parametrize("impl", ["fp64", "int8x4", "int8x6", "int8x8", "bf16x3"])
@pytest.mark.parametrize("m", [128, 520])
def test_emulated_float64_is_within_its_bits_and_a_slice_less_is_refused(m: int, impl: str) -> None:
    assert _check("fp64_emulation", m=m, impl=impl) is not None


def test_slices_of_whole_numbers_multiply_exactly() -> None:
    a = torch.randint(-(2**20), 2**20, (32, 64), generator=torch.Generator().manual_seed(1))
    b = torch.randint(-(2**20), 2**20, (64, 32), generator=torch.Generator().manual_seed(2))
    made = fp64_emulation.multiply_sliced(a.double(), b.double(), 8)
    assert torch.equal(made, (a @ b).double())


def test_reference_of_float64_is_nearer_than_float64() -> None:
    from fractions import Fraction

    a, b = _normal(3, 40), _normal(40, 3, seed=2)
    exact = [
        [
            sum(Fraction(float(a[i, p])) * Fraction(float(b[p, j])) for p in range(40))
            for j in range(3)
        ]
        for i in range(3)
    ]
    made = fp64_emulation.reference(a, b)
    for i in range(3):
        for j in range(3):
            assert abs(Fraction(float(made[i, j])) - exact[i][j]) <= abs(exact[i][j]) / 2**51


def test_bits_grow_with_slices_up_to_float64() -> None:
    bits = {
        impl: fp64_emulation.correct_bits(fp64_emulation.launch_of(impl), "cpu")["correct_bits"]
        for impl in ("bf16x3", "int8x4", "int8x6", "int8x8", "fp64")
    }
    assert bits["bf16x3"] < bits["int8x4"] < bits["int8x6"] < 50 < min(bits["int8x8"], bits["fp64"])


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_strassen_is_exact_in_whole_numbers(levels: int) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-9, 9, (24, 40), generator=generator)
    b = torch.randint(-9, 9, (40, 16), generator=generator)
    made = strassen.multiply(a.double(), b.double(), levels=levels)
    assert torch.equal(made, (a @ b).double())
    assert strassen.count_of(levels) == 7**levels


@pytest.mark.parametrize("impl", ["torch", "strassen_1", "strassen_2"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_strassen_is_within_its_tolerance_and_a_lost_product_refused(dtype: str, impl: str) -> None:
    assert _check("strassen", dtype=dtype, n=512, impl=impl) is not None
