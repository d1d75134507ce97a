"""Sparse and emulated multiplication, transforms and formats: exact where they are exact."""

from functools import partial
from typing import Any

import pytest
from perfsuite_compute import fft_linalg, fp64_emulation, mx_quantize, number_formats, sparse24

torch = pytest.importorskip("torch")


def _normal(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_pruning_keeps_the_larger_two_of_each_four() -> None:
    w = torch.tensor([[1.0, -4.0, 0.5, 3.0, -0.1, 0.2, 9.0, -8.0]])
    assert sparse24.pruned(w).tolist() == [[0.0, -4.0, 0.0, 3.0, 0.0, 0.0, 9.0, -8.0]]


def test_slices_of_whole_numbers_multiply_exactly() -> None:
    a = torch.randint(-(2**20), 2**20, (32, 64), generator=torch.Generator().manual_seed(1))
    b = torch.randint(-(2**20), 2**20, (64, 32), generator=torch.Generator().manual_seed(2))
    made = fp64_emulation.multiply_sliced(a.double(), b.double(), 8)
    assert torch.equal(made, (a @ b).double())


def test_reference_of_float64_is_nearer_than_float64() -> None:
    from fractions import Fraction

    a, b = _normal(3, 40), _normal(40, 3, seed=2)
    zero = Fraction()
    exact = [
        [
            sum((Fraction(float(a[i, p])) * Fraction(float(b[p, j])) for p in range(40)), zero)
            for j in range(3)
        ]
        for i in range(3)
    ]
    made = fp64_emulation.reference(a, b)
    for i in range(3):
        for j in range(3):
            assert abs(Fraction(float(made[i, j])) - exact[i][j]) <= abs(exact[i][j] / 2**51)


def test_bits_grow_with_slices_up_to_float64() -> None:
    launch, like = partial(fp64_emulation.fp64_emulation.launch, None), torch.empty(0)
    bits = {
        impl: fp64_emulation.correct_bits(launch(impl=impl), like, like)["correct_bits"]
        for impl in ("bf16x3", "int8x4", "int8x6", "int8x8", "fp64")
    }
    assert bits["bf16x3"] < bits["int8x4"] < bits["int8x6"] < 50 < min(bits["int8x8"], bits["fp64"])


def test_blocked_cholesky_takes_a_last_panel_that_is_not_whole() -> None:
    x = _normal(70, 70)
    a = x @ x.t() + 70 * torch.eye(70, dtype=torch.float64)
    made = fft_linalg.blocked_cholesky(a, panel=32)
    assert torch.allclose(made @ made.t(), a, rtol=1e-12)
    assert torch.equal(made, made.tril())


@pytest.mark.parametrize(
    ("name", "count", "smallest"),
    [("fp8_e4m3", 127, 2.0**-9), ("fp8_e5m2", 124, 2.0**-16), ("mxfp6_e2m3", 32, 0.125),
     ("mxfp6_e3m2", 32, 0.0625), ("mxfp4", 8, 0.5), ("int4", 8, 1.0)],
)  # fmt: skip
def test_table_of_a_format_is_that_of_its_codes(name: str, count: int, smallest: float) -> None:
    form = number_formats.FORMATS[name]
    values = number_formats.values_of(form)
    assert len(values) == count
    assert values[:2] == [0.0, smallest]
    assert values[-1] == form.largest


@pytest.mark.parametrize(
    ("largest", "scale"), [(4.0, 127), (7.98, 127), (8.0, 128), (3.98, 126), (6e-38, 1), (0.0, 0)]
)
def test_mxfp4_divides_by_the_power_below_and_goes_to_the_even_code(
    largest: float, scale: int
) -> None:
    # OCP MX 1.0, 6.3: the power of two in the largest, over e2m1's 4. Ties: 0.25, 0.75, ... 5.
    step = 2.0 ** (scale - 127) if largest else 1.0
    ties = [largest / step, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -3.5, -0.1, 0.3]
    numbers = [step * tie if largest else 0.0 for tie in ties]
    x = torch.zeros(128, 128, dtype=torch.bfloat16)
    x[0, : len(numbers)] = torch.tensor(numbers)
    codes, tiles = mx_quantize.written(x, torch.ones(2), "mxfp4")
    expected = [7 if ties[0] >= 5 else 6, 0, 2, 2, 4, 4, 6, 14, 8, 1] if largest else [0] * 10
    pairs = zip(expected[::2], expected[1::2], strict=True)
    assert codes[0, :5].tolist() == [low + 16 * high for low, high in pairs]
    assert int(tiles.flatten()[0]) == scale


def test_table_of_fp8_is_torch_s() -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert number_formats.values_of(number_formats.FORMATS["fp8_e4m3"]) == codes.double().tolist()
