"""Matrix multiplication in float64 out of integer tensor cores: what each slice buys."""

import math
from typing import Any

from perfsuite import Metric, Work, cuda, operator
from perfsuite.gpu import torch

SLICE_BITS = 7  # of an int8 with its sign: -64 to 64
_BF16_SPLITS = 3  # of 8 bits each: what fp32 holds
# Slices by implementation.
SLICES = {"int8x4": 4, "int8x6": 6, "int8x8": 8}
# Relative error allowed. What s slices leave out of an operand is at most half a unit of the last,
# 2**(1 - 7 s) of the row's largest element; the largest of some thousand normal numbers is about 4
# times their deviation, and the products left out are as large again. The bf16 splits stop at fp32,
# where tensor cores truncate each of some 1500 sums: by 2**-23 at most.
_TOLERANCE = {
    "fp64": None, "int8x4": 2.0**-21, "int8x6": 2.0**-35, "int8x8": 2.0**-48, "bf16x3": 1e-4
}  # fmt: skip
_TRIED = 256  # the size that correct bits are counted at


def _work(m: int, impl: str) -> Work:
    rate = {"fp64": "fp64", "bf16x3": "bf16"}.get(impl, "int8")
    return Work(read_bytes=16 * m * m, write_bytes=8 * m * m, flops=2 * m**3, rate_dtype=rate)


@operator(
    smoke={"m": 256, "impl": "int8x8"},
    nightly={"m": 4096, "impl": ["fp64", "int8x6", "int8x8", "bf16x3"]},
    full=[
        {"m": [256, 2048, 4096, 8192]},
        # A multiple of 8, as the library asks, and of no tile.
        {"m": 4104, "impl": ["fp64", "int8x8"]},
    ],
    needs=[cuda()],
    work=_work,
    # Slicing holds a few float64 copies; the reference eight.
    memory_bytes=lambda m, impl: 144 * m * m,
    tolerance=lambda *, impl: _TOLERANCE[impl],
    metrics=[Metric("correct_bits", "bits", better="higher", threshold=0.01)],
    tags=["numerics", "tensor-cores"],
    ceilings={"fp64": lambda m, impl: (m, impl) == (4096, "fp64")},
    source="Ootomo, Ozaki and Yokota, DGEMM on Integer Matrix Multiplication Unit "
    "(arXiv:2306.11975); Henry, Tang and Heinecke, bfloat16 splits (arXiv:1904.06376)",
)
def fp64_emulation(rng: Any, *, m: int) -> tuple[Any, Any]:
    """Multiply two float64 matrices of m x m, natively or as a sum of products of narrow slices.

    ``int8x8`` scales each row of a and column of b by a power of two, cuts them into 8 slices of
    7 bits, and multiplies those whose bits count (Ozaki's scheme): products of slices i and j with
    the same i + j are one integer multiplication, exact, with the slices side by side along k. Each
    needs one addition in float64. ``bf16x3`` cuts into 3 bf16 numbers and sums 6 products in fp32:
    what fp32 can hold, not float64. Slicing is part of the launch. Rates are those of the tensor
    cores in use. ``correct_bits`` is minus the logarithm of the relative error at 256 x 256.
    """
    return rng.randn(m, m, dtype="float64"), rng.randn(m, m, dtype="float64")


def _launch(ctx: Any, *, impl: str) -> Any:
    if impl in SLICES:
        return lambda a, b: multiply_sliced(a, b, SLICES[impl])
    return multiply_split if impl == "bf16x3" else torch.mm


for _name in _TOLERANCE:
    fp64_emulation.impl(_launch, name=_name)


def multiply_sliced(a: Any, b: Any, slices: int) -> Any:
    """Return a @ b through int8 products of ``slices`` slices; k * slices is below 2**19."""
    (m, k), n = a.shape, b.shape[1]
    left, left_scale = _sliced(a, slices)
    right, right_scale = _sliced(b.t(), slices)
    # a's slices in order beside one another, b's in reverse: at any offset they pair to one sum.
    rows, columns = torch.cat(left, dim=1), torch.cat(right[::-1], dim=1)
    total = torch.zeros(m, n, dtype=torch.float64, device=a.device)
    for last in reversed(range(slices)):  # the smallest first
        width = (last + 1) * k
        product = torch._int_mm(rows[:, :width], columns[:, slices * k - width :].t())  # noqa: SLF001
        total.add_(product, alpha=2.0 ** (-SLICE_BITS * (last + 2)))
    return total.mul_(left_scale).mul_(right_scale.t())


def _sliced(x: Any, slices: int) -> tuple[list[Any], Any]:
    """Return x by rows as int8 slices, x = scale * sum of slice i * 2**(-7 (i + 1)), and scale."""
    _, exponent = torch.frexp(x.abs().amax(dim=1, keepdim=True))
    # Twice the power of two above the largest: a slice is then 64 at most, its sign included.
    scale = power(exponent + 1)
    rest = x / scale
    parts = []
    for _ in range(slices):
        rest = rest * 2.0**SLICE_BITS
        part = rest.round()
        rest = rest - part  # exact, as are the powers of two
        parts.append(part.to(torch.int8))
    return parts, scale


def multiply_split(a: Any, b: Any) -> Any:
    """Return a @ b through the six largest of nine products of three bf16 numbers, in fp32."""
    left, right = _split(a), _split(b)
    pairs = [(i, j) for i in range(_BF16_SPLITS) for j in range(_BF16_SPLITS - i)]
    rows = torch.cat([left[i] for i, _ in pairs], dim=1)
    columns = torch.cat([right[j] for _, j in pairs], dim=0)
    if a.is_cuda:
        return torch.mm(rows, columns, out_dtype=torch.float32).double()
    return (rows.float() @ columns.float()).double()


def _split(x: Any) -> list[Any]:
    parts = []
    for _ in range(_BF16_SPLITS):
        parts.append(x.to(torch.bfloat16))
        x = x - parts[-1]
    return parts


@fp64_emulation.reference
def reference(a: Any, b: Any) -> Any:
    """Return a @ b with less error than float64 has: the large part of it is summed exactly.

    Multiples of 2**-20 of a row's (a column's) power of two have products whose sum of up to 4096
    fits in float64's 53 bits; what is left is 2**-20 as large, and so is its error.
    """
    left, right = _coarse(a, 1), _coarse(b, 0)
    return left @ right + (left @ (b - right) + (a - left) @ b)


def _coarse(x: Any, dim: int) -> Any:
    _, exponent = torch.frexp(x.abs().amax(dim=dim, keepdim=True))
    unit = power(exponent - 20)
    return (x / unit).round() * unit


def power(exponent: Any) -> Any:
    """Return 2**exponent in float64 by its bits: ``torch.ldexp`` goes through a power in fp32."""
    return (exponent.to(torch.int64) + 1023 << 52).view(torch.float64)


@fp64_emulation.exact
def correct_bits(multiply: Any, like: Any, _: Any) -> dict[str, float]:
    """Return the metric, to a tenth of a bit: sums in another order differ by less."""
    generator = torch.Generator().manual_seed(20260)
    a, b = torch.randn(2, _TRIED, _TRIED, dtype=torch.float64, generator=generator).to(like.device)
    want = reference(a, b)
    error = float((multiply(a, b) - want).norm() / want.norm())
    return {"correct_bits": round(-math.log2(max(error, 2.0**-60)), 1)}


@fp64_emulation.wrong
def _wrong(a: Any, b: Any, *, impl: str) -> Any:
    """Slice once too few; natively, and in bf16, convert to the next narrower format first."""
    if impl in SLICES:
        return multiply_sliced(a, b, SLICES[impl] - 1)
    narrow = torch.float32 if impl == "fp64" else torch.bfloat16
    return reference(a.to(narrow).double(), b.to(narrow).double())
