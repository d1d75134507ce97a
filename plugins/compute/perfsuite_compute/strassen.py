"""Seven multiplications of half the size in place of eight, and what the additions cost."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import DTYPES, matmul64, torch

LEVELS = {"torch": 0, "strassen_1": 1, "strassen_2": 2}


@perfsuite.operator(
    smoke={"dtype": "fp32", "n": 512, "impl": "strassen_1"},
    nightly=[
        {"dtype": "fp32", "n": 4096, "impl": ["strassen_1", "strassen_2"]},
        {"dtype": "bf16", "n": 8192, "impl": "strassen_1"},
    ],
    full=[
        # 4100 is no multiple of a tile, but of 4, so that two levels have whole halves. Of the
        # other sizes ``gemm`` has the library's product.
        {"dtype": "fp32", "n": 4100, "impl": ["torch", "strassen_1"]},
        {"dtype": "bf16", "n": 8192, "impl": "strassen_2"},
    ],
    needs=[perfsuite.cuda().when(dtype="bf16")],
    # At most: each level holds seven products of a quarter and a few sums.
    memory_bytes=lambda n, **_: 64 * n * n,
    rate_dtype=lambda *, dtype: dtype,
    # Each level rounds sums of two to four blocks once more, in bf16 to 8 bits; the errors of the
    # blocks add up where they cancel in the result. Higham, Accuracy and Stability of Numerical
    # Algorithms, section 23.2: each level multiplies the bound by no more than 12, in practice 2.
    tolerance=lambda *, dtype, impl: (1e-2 if dtype == "bf16" else 1e-5) * 2 ** LEVELS[impl],
    metrics=[perfsuite.Metric("multiplications", "", better="equal")],
    tags=["algorithms", "numerics"],
    source="Strassen, Gaussian Elimination is not Optimal (1969); AlphaTensor: chapter 11 of the "
    "book's README, Fawzi et al., Nature 610 (2022)",
)
def strassen(rng: Any, *, dtype: str, n: int) -> tuple[Any, Any]:
    """Multiply two n x n matrices with one or two levels of Strassen's algorithm above cuBLAS.

    A level saves an eighth of the multiplications, 8/7 = 1.14 at best, and pays with 18 additions
    of blocks through memory, and with accuracy. Tensor cores made multiplication so much cheaper
    than memory that in bf16 there is little to win. Work is that of the ordinary algorithm.
    """
    return rng.randn(n, n, dtype=DTYPES[dtype]), rng.randn(n, n, dtype=DTYPES[dtype])


strassen.reference(matmul64)


@strassen.exact
def _multiplications(launch: Any, a: Any, b: Any) -> dict[str, float]:
    return {"multiplications": perfsuite.count_operators(lambda: launch(a, b))["mm"]}


def _launch(ctx: Any, *, impl: str) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = False
    return partial(multiply, levels=LEVELS[impl])


for _name in LEVELS:
    strassen.impl(_launch, name=_name)


def multiply(a: Any, b: Any, *, levels: int) -> Any:
    """Return a @ b; sizes are multiples of 2**levels."""
    if levels == 0:
        return torch.mm(a, b)
    c = torch.empty_like(a)
    (a11, a12, a21, a22), (b11, b12, b21, b22), (c11, c12, c21, c22) = map(_quarters, (a, b, c))
    times = partial(multiply, levels=levels - 1)
    m1 = times(a11 + a22, b11 + b22)
    m2 = times(a21 + a22, b11)
    m3 = times(a11, b12 - b22)
    m4 = times(a22, b21 - b11)
    m5 = times(a11 + a12, b22)
    m6 = times(a21 - a11, b11 + b12)
    m7 = times(a12 - a22, b21 + b22)
    torch.add(m3, m5, out=c12)
    torch.add(m2, m4, out=c21)
    torch.add(m1, m4, out=c11).sub_(m5).add_(m7)
    torch.sub(m1, m2, out=c22).add_(m3).add_(m6)
    return c


def _quarters(x: Any) -> list[Any]:
    return [quarter for half in x.chunk(2) for quarter in half.chunk(2, dim=1)]


@strassen.wrong
def _without_the_third(a: Any, b: Any) -> Any:
    """Forget the third product in the last quarter."""
    c = multiply(a, b, levels=1)
    half = a.shape[0] // 2
    c[half:, half:] -= a[:half, :half] @ (b[:half, half:] - b[half:, half:])
    return c
