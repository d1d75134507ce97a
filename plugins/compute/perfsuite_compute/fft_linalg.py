"""Fourier transforms, Cholesky factors, sparse matrices: by the library, and by hand."""

import math
from typing import Any

from perfsuite import Work, Workload, case, cuda
from perfsuite.gpu import torch

ROW_ENTRIES = 32  # of the sparse matrix
COLUMNS = 64  # of the dense one
_ROWS_AT_ONCE = 4096


def batch_of(n: int) -> int:
    """Return how many transforms of n points one launch makes."""
    return 128 if n <= 512 else 2**24 // n  # noqa: PLR2004 - what a CPU can do in time


def _work(op: str, n: int, impl: str) -> Work:
    if op == "fft":
        points = batch_of(n) * n
        return Work(8 * points, 8 * points, 5 * points * math.log2(n), "fp32")
    if op == "cholesky":
        half = 8 * n * (n + 1) // 2
        return Work(half, half, n**3 / 3, "fp64")
    entries, dense = ROW_ENTRIES * n, 4 * n * COLUMNS
    return Work(8 * entries + 4 * (n + 1) + dense, dense, 2 * entries * COLUMNS, "fp32")


@case(
    # Odd sizes are prime (fft) or of no block's width (cholesky).
    nightly=[
        {"op": "fft", "n": 1024, "impl": ["library", "plain"]},
        {"op": "fft", "n": 1021, "impl": "library"},
        {"op": "cholesky", "n": 2048, "impl": ["library", "plain"]},
        {"op": "spmm", "n": 131072, "impl": ["library", "plain"]},
    ],
    full=[
        {"op": "fft", "n": 512, "impl": "library"},
        {"op": "cholesky", "n": [256, 2047], "impl": "library"},
    ],
    needs=[cuda().when(op="spmm"), cuda().when(impl="plain")],
    work=_work,
    memory_bytes=lambda **_: 5 << 29,  # what most takes: messages of a sparse product
    tags=["fft", "linear-algebra", "sparsity"],
    source="AI and scientific computing: chapter 12 of the book's README; flops of an FFT, "
    "5 n log2 n: Van Loan, Computational Frameworks for the FFT; of Cholesky, n**3 / 3: Golub and "
    "Van Loan, Matrix Computations",
)
def fft_linalg(ctx: Any, *, op: str, n: int, impl: str) -> Workload:
    """Transform, factor or multiply as scientific codes do, with torch's libraries and without.

    ``fft``: 2**24 points in complex64, n at a time; cuFFT, or the product with the n x n matrix of
    the transform, whose operations grow with n squared; 1021 is prime. ``cholesky``: the factor of
    an n x n matrix in float64; cuSOLVER, or panel by panel in torch. ``spmm``: a sparse matrix of
    32 fp32 entries a row times a dense one of 64 columns; cuSPARSE, or the gather and the atomic
    additions of a graph network written by hand.

    What keeps the libraries far from a ceiling: a row of a sparse product gathers 32 rows of the
    dense matrix, in all 1 GiB by count, mostly out of the L2 cache, where the work has each row of
    it once. Each column of a factor waits for those before it, and what can be multiplied at once
    shrinks as it goes.
    """
    return {"fft": _fft, "cholesky": _cholesky, "spmm": _spmm}[op](n, impl)


def _fft(n: int, impl: str) -> Workload:
    def make_inputs(rng: Any) -> tuple[Any, ...]:
        x = torch.complex(rng.randn(batch_of(n), n), rng.randn(batch_of(n), n))
        # The matrix is made beforehand: a code that transforms often would keep it.
        return (x, _waves(n, x.device).to(torch.complex64)) if impl == "plain" else (x,)

    def reference(x: Any, *_: Any) -> Any:
        waves = _waves(n, x.device)
        return torch.cat([part.to(torch.complex128) @ waves for part in x.split(_ROWS_AT_ONCE)])

    return Workload(
        fn=torch.mm if impl == "plain" else torch.fft.fft,
        make_inputs=make_inputs,
        reference=reference,
        wrong=lambda x, *_: torch.fft.ifft(x, norm="forward"),  # the sign of the exponent
        tolerance=1e-5,
    )


def _waves(n: int, place: Any) -> Any:
    """Return exp(-2 pi i j k / n) in complex128; the angle is reduced as an integer, so exactly."""
    index = torch.arange(n, device=place)
    angle = (index[:, None] * index % n).double() * (-2 * math.pi / n)
    return torch.complex(angle.cos(), angle.sin())


def _cholesky(n: int, impl: str) -> Workload:
    def make_inputs(rng: Any) -> tuple[Any, ...]:
        factor = rng.randn(n, n, dtype="float64").tril_(-1).mul_(0.5 / math.sqrt(n))
        factor.diagonal().copy_(1 + rng.rand(n, dtype="float64"))
        return factor, factor @ factor.t()

    # cholesky_ex: the other one waits for the GPU to say whether it failed.
    library: Any = lambda a: torch.linalg.cholesky_ex(a)[0]  # noqa: E731
    factorise = blocked_cholesky if impl == "plain" else library
    return Workload(
        fn=lambda factor, a: factorise(a),
        make_inputs=make_inputs,
        # There is one factor with a positive diagonal: the one the matrix was made of.
        reference=lambda factor, a: factor,
        wrong=lambda factor, a: library(a + 1e-6 * torch.eye(n, dtype=a.dtype, device=a.device)),
    )


def blocked_cholesky(a: Any, panel: int = 256) -> Any:
    """Return the lower factor of a, a panel of columns at a time."""
    lower = a.tril()
    for start in range(0, a.shape[0], panel):
        end = min(start + panel, a.shape[0])
        corner = torch.linalg.cholesky_ex(lower[start:end, start:end])[0]
        lower[start:end, start:end] = corner
        if end < a.shape[0]:
            below = torch.linalg.solve_triangular(
                corner.t(), lower[end:, start:end], upper=True, left=False
            )
            lower[end:, start:end] = below
            lower[end:, end:] -= below @ below.t()
    return lower.tril_()


def _spmm(n: int, impl: str) -> Workload:
    def make_inputs(rng: Any) -> tuple[Any, ...]:
        columns = rng.randint(0, n, n, ROW_ENTRIES).sort(dim=1).values.flatten()
        starts = torch.arange(0, n * ROW_ENTRIES + 1, ROW_ENTRIES, dtype=torch.int32)
        values = rng.randn(n * ROW_ENTRIES)
        return starts.to(values.device), columns, values, rng.randn(n, COLUMNS)

    return Workload(
        fn=_gathered if impl == "plain" else _spmm_library,
        make_inputs=make_inputs,
        reference=_spmm_reference,
        # Each row starts one entry late.
        wrong=lambda starts, columns, values, dense: _gathered(
            starts, columns.roll(-1), values.roll(-1), dense
        ),
    )


def _spmm_library(starts: Any, columns: Any, values: Any, dense: Any) -> Any:
    size = (len(starts) - 1, len(dense))
    sparse = torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)
    return torch.mm(sparse, dense)


def _gathered(starts: Any, columns: Any, values: Any, dense: Any) -> Any:
    rows = torch.arange(len(starts) - 1, device=values.device).repeat_interleave(ROW_ENTRIES)
    out = torch.zeros(len(starts) - 1, dense.shape[1], device=values.device)
    return out.index_add_(0, rows, dense.index_select(0, columns) * values[:, None])


def _spmm_reference(starts: Any, columns: Any, values: Any, dense: Any) -> Any:
    """Sum each row's 32 products in float64, some rows at a time."""
    at_once = _ROWS_AT_ONCE * ROW_ENTRIES
    chunks = zip(columns.split(at_once), values.split(at_once), strict=True)
    products = (dense[at].double() * value.double()[:, None] for at, value in chunks)
    return torch.cat([each.view(-1, ROW_ENTRIES, COLUMNS).sum(dim=1) for each in products])
