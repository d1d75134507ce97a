"""The step before an 8-bit matrix multiplication: a scale for each row, and the row in codes."""

from typing import Any

from perfsuite import arch, cuda, operator, package
from perfsuite.gpu import Later, by_rows, torch

_LARGEST = {"fp8": 448.0, "int8": 127.0}  # e4m3, and int8 without -128
_TORCH = {"fp8": "float8_e4m3fn", "int8": "int8"}
# Rows that the reference works on at a time, in float64.
_ROWS_AT_ONCE = 512


@operator(
    smoke={"to": "fp8", "rows": 256, "cols": 1024, "impl": "triton"},
    nightly={"to": ["fp8", "int8"], "rows": 8192, "cols": 7168},
    full=[
        {"to": ["fp8", "int8"], "rows": 256, "cols": 1024},
        {"to": ["fp8", "int8"], "rows": 8192, "cols": 16384},
    ],
    tolerance=0.0,
    tags=["quantisation", "fusion"],
    source="FP8 and INT8 quantisation: chapters 6 and 10 of the book",
)
def quantize_cast(rng: Any, *, to: str, rows: int, cols: int) -> Any:
    """Turn each row of bf16 into 8-bit codes, its largest value into the largest code.

    ``eager`` finds the largest, scales, rounds and converts in kernels of their own, through
    memory in fp32: some 25 bytes an element for the 3 that are needed. ``triton`` keeps a row in
    registers. The arithmetic is stated step by step (codes = x * (1 / largest * most)), each step
    rounded once, so that all implementations must give the same codes.
    """
    x = rng.randn(rows, cols, dtype="bfloat16")
    x *= 0.25 + 3.75 * rng.rand(rows, 1, dtype="bfloat16")
    return x, rng.empty(rows, cols, dtype="uint8"), rng.empty(rows)


@quantize_cast.reference
def reference(x: Any, *_: Any, to: str) -> tuple[Any, Any]:
    """Return the codes, looked up in a table of all values there are, and the scales.

    In float64, rounded to fp32 after each step: a product of two fp32 numbers is exact in float64.
    """
    # Without the last of fp8, which is no number.
    table = torch.arange(127 + (to == "int8"), dtype=torch.uint8, device=x.device)
    values = table.view(getattr(torch, _TORCH[to])).double()

    def codes_of(part: Any) -> Any:
        factor = (1 / part.abs().amax(dim=1, keepdim=True)).float().double() * _LARGEST[to]
        scaled = (part * factor.float().double()).float().double()
        code = nearest(scaled.abs(), values)
        negative = code + 128 if to == "fp8" else -code
        return torch.where(torch.signbit(scaled), negative, code).to(torch.uint8)

    largest = by_rows(lambda part: part.abs().amax(dim=1), x, _ROWS_AT_ONCE)
    return by_rows(codes_of, x, _ROWS_AT_ONCE), (largest * inverse_of(_LARGEST[to])).float()


def nearest(size: Any, values: Any) -> Any:
    """Return the numbers of the nearest of ``values``, which rise; on a middle the even one."""
    middles = (values[1:] + values[:-1]) / 2
    below = torch.bucketize(size, middles)  # how many middles are less
    tie = (below < len(middles)) & (size == middles[below.clamp_max(len(middles) - 1)])
    return below + (tie & (below % 2 == 1))


@quantize_cast.impl
def _eager(x: Any, codes: Any, scale: Any, *, to: str) -> None:
    most = _LARGEST[to]
    largest = x.abs().amax(dim=1, keepdim=True).float()
    scaled = (x.float() * (largest.reciprocal() * most)).clamp_(-most, most)
    codes.view(getattr(torch, _TORCH[to])).copy_(scaled if to == "fp8" else scaled.round_())
    scale.copy_((largest * inverse_of(most)).view(-1))


@quantize_cast.impl(needs=[cuda(), arch("sm_89+").when(to="fp8"), package("triton")])
def _triton(ctx: Any, *, to: str) -> Any:
    quantise = Later("perfsuite_compute.quantize_cast_triton").quantise
    kind, most = getattr(torch, _TORCH[to]), _LARGEST[to]
    inverse = inverse_of(most)
    return lambda x, codes, scale: quantise(
        x, codes.view(kind), scale, largest=most, inverse=inverse
    )


def inverse_of(most: float) -> float:
    """Return 1 / most in fp32."""
    return float(torch.tensor(1 / most, dtype=torch.float32))
