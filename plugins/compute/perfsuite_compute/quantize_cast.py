"""The step before an 8-bit matrix multiplication: a scale for each row, and the row in codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package

_LARGEST = {"fp8": 448.0, "int8": 127.0}  # e4m3, and int8 without -128
_TORCH = {"fp8": "float8_e4m3fn", "int8": "int8"}
# Rows that the reference works on at a time, in float64.
_ROWS_AT_ONCE = 512


def _work(to: str, rows: int, cols: int, impl: str) -> Work:
    return Work(read_bytes=2 * rows * cols, write_bytes=rows * cols + 4 * rows)


def _memory_bytes(to: str, rows: int, cols: int, impl: str) -> int:
    eager = 8 * rows * cols if impl == "eager" else 0  # two fp32 copies at a time
    return 4 * rows * cols + 8 * rows + eager + 64 * _ROWS_AT_ONCE * cols


@perfsuite.case(
    axes={
        "to": ["fp8", "int8"],
        "rows": [8192],
        "cols": [7168],
        "impl": ["eager", "triton"],
    },
    smoke={"rows": [256], "cols": [1024]},
    full={"cols": [7168, 16384]},
    full_only=[{"rows": [256], "impl": ["eager"]}, {"rows": [256], "to": ["int8"]}],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        cuda().when(impl="triton"),
        arch("sm_89+").when(to="fp8", impl="triton"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["quantisation", "fusion"],
    source="FP8 and INT8 quantisation: chapters 6 and 10 of the book",
)
def quantize_cast(ctx: Any, to: str, rows: int, cols: int, impl: str) -> Workload:
    """Turn each row of bf16 into 8-bit codes, its largest value into the largest code.

    ``eager`` finds the largest, scales, rounds and converts in kernels of their own, through
    memory in fp32: some 25 bytes an element for the 3 that are needed. ``triton`` keeps a row in
    registers. The arithmetic is stated step by step (codes = x * (1 / largest * most)), each step
    rounded once, so that all implementations must give the same codes.
    """

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        x = rng.randn(rows, cols, dtype="bfloat16")
        x *= 0.25 + 3.75 * rng.rand(rows, 1, dtype="bfloat16")
        return x, rng.empty(rows, cols, dtype="uint8"), rng.empty(rows)

    return Workload(
        fn=_launch_of(to, impl),
        make_inputs=make_inputs,
        reference=lambda x, codes, scale: reference(x, to),
        wrong=lambda x, codes, scale: _wrong(x, codes, scale, to),
        tolerance=0.0,
    )


def _launch_of(to: str, impl: str) -> Callable[..., None]:
    import torch

    kind, most = getattr(torch, _TORCH[to]), _LARGEST[to]
    if impl == "eager":
        return lambda x, codes, scale: _eager(x, codes.view(kind), scale, most)
    from perfsuite_compute import quantize_cast_triton

    def launch(x: Any, codes: Any, scale: Any) -> None:
        quantize_cast_triton.quantise(
            x, codes.view(kind), scale, largest=most, inverse=inverse_of(most)
        )

    return launch


def inverse_of(most: float) -> float:
    """Return 1 / most in fp32."""
    import torch

    return float(torch.tensor(1 / most, dtype=torch.float32))


def _eager(x: Any, codes: Any, scale: Any, most: float) -> None:
    largest = x.abs().amax(dim=1, keepdim=True).float()
    scaled = x.float() * (largest.reciprocal() * most)
    codes.copy_(scaled.clamp_(-most, most) if codes.is_floating_point() else scaled.round_())
    scale.copy_((largest * inverse_of(most)).view(-1))


def reference(x: Any, to: str) -> tuple[Any, Any]:
    """Return the codes, looked up in a table of all values there are, and the scales.

    In float64, rounded to fp32 after each step: a product of two fp32 numbers is exact in float64.
    """
    import torch

    values = torch.tensor(_values(to), dtype=torch.float64, device=x.device)
    middles = (values[1:] + values[:-1]) / 2
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    largest = x.double().abs().amax(dim=1, keepdim=True)
    factor = ((1 / largest).float().double() * _LARGEST[to]).float().double()
    for start in range(0, x.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        scaled = (x[rows].double() * factor[rows]).float().double()
        size = scaled.abs()
        below = torch.bucketize(size, middles)  # how many middles are less
        # On a middle the even one is right.
        tie = (below < len(middles)) & (size == middles[below.clamp_max(len(middles) - 1)])
        magnitude = below + (tie & (below % 2 == 1))
        codes[rows] = _signed(magnitude, scaled, to)
    return codes, (largest * inverse_of(_LARGEST[to])).float().view(-1)


def _signed(magnitude: Any, scaled: Any, to: str) -> Any:
    import torch

    is_negative = torch.signbit(scaled)
    if to == "int8":
        magnitude = torch.where(is_negative, -magnitude, magnitude)
        return magnitude.to(torch.int8).view(torch.uint8)
    return (magnitude + 128 * is_negative).to(torch.uint8)


def _values(to: str) -> list[float]:
    """Return the values of codes 0, 1, 2...: e4m3 without NaN, or whole numbers."""
    if to == "int8":
        return [float(code) for code in range(128)]
    small = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
    large = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    return (small + large)[:-1]


def _wrong(x: Any, codes: Any, scale: Any, to: str) -> None:
    """Give each row the largest value of the row after it."""
    import torch

    most = _LARGEST[to]
    largest = x.abs().amax(dim=1, keepdim=True).float().roll(-1, 0)
    scaled = (x.float() * (largest.reciprocal() * most)).clamp_(-most, most)
    codes.view(getattr(torch, _TORCH[to])).copy_(scaled.round_() if to == "int8" else scaled)
    scale.copy_((largest * inverse_of(most)).view(-1))


CASES = (quantize_cast,)
