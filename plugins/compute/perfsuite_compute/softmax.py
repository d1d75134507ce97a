"""Softmax of each row: five kernels as people write it, against one that reads and writes once."""

from typing import Any

from perfsuite import KERNELS, Beats, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, by_rows, compiled, load, torch

kernels = Later("perfsuite_compute.softmax_triton")
_FUSED = Beats(
    "eager",
    3.0,
    # Counted for M rows of N elements, N large: (5MN + 2M read + 3MN + 2M written) / 2MN.
    "Triton tutorial 02, fused softmax: written out it reads 5MN + 2M elements and writes "
    "3MN + 2M; fused it reads MN and writes MN, a quarter; a ratio of 3 is asked for",
    at={"cols": (8192, 32768)},
    needs=(cuda(),),
    name="softmax_fused",
)


@operator(
    smoke={"dtype": "fp32", "rows": 1024, "cols": 1024, "impl": ["torch", "triton"]},
    nightly=[
        {"dtype": ["bf16", "fp32"], "rows": 8192, "cols": 8192},
        {"dtype": "bf16", "rows": 4096, "cols": 32768, "impl": ["triton", "cuda"]},
        {"dtype": "bf16", "rows": 8192, "cols": 8191, "impl": ["triton", "cuda"]},
    ],
    full=[
        {"dtype": ["bf16", "fp32"], "rows": 8192, "cols": [8191, 8192]},
        {"dtype": ["bf16", "fp32"], "rows": 4096, "cols": 32768},
        {"dtype": "fp32", "rows": 1024, "cols": 1024, "impl": ["eager", "cuda"]},
    ],
    needs=[cuda().when(dtype="bf16")],
    # Input, output, four intermediates of the eager one, and the float64 reference.
    memory_bytes=lambda rows, cols, **_: 38 * rows * cols,
    metrics=[KERNELS],
    tags=["fusion", "reduction"],
    source="kernel fusion: chapter 8 of the book; Triton tutorial 02, fused softmax",
)
def softmax(rng: Any, *, dtype: str, rows: int, cols: int) -> Any:
    """Take the softmax of each row of a matrix.

    ``eager`` is the formula as it is written: maximum, difference, exponential, sum, quotient, each
    a kernel that goes through memory. ``compile`` is the same through torch.compile. ``torch``,
    ``triton`` and ``cuda`` are one kernel each; the latter two keep the row in registers. The work
    is one read and one write for all of them. Rows of 8191 elements start at no multiple of 16
    bytes: both take the ragged ends apart, element by element, to go on with 16-byte accesses. From
    8191 columns on both reach 92 % of a copy's rate and more on an H200 but for Triton's 32768 of
    bf16 (83 %): it keeps them as fp32, which fill an SM's registers, and copies the next rows ahead
    to shared memory; CUDA C++ (94 %) keeps them as bf16, so that two blocks fit. ``torch`` breaks
    its claim of 3 times ``eager`` there with 8192 columns: 2.27 times in bf16, 2.67 in fp32. Rows
    are shifted by up to 100 either way, as logits with outliers are: without the maximum, fp32's
    exponential overflows.
    """
    x = rng.randn(rows, cols, dtype=DTYPES[dtype])
    x += 200 * rng.rand(rows, 1, dtype=DTYPES[dtype]) - 100
    return x, rng.empty(rows, cols, dtype=DTYPES[dtype])


@softmax.reference
def _reference(x: Any, y: Any) -> Any:
    return by_rows(lambda part: (part - part.logsumexp(1, keepdim=True)).exp(), x)


@softmax.wrong
def _without_maximum(x: Any, y: Any) -> Any:
    powers = x.float().exp()
    return (powers / powers.sum(dim=1, keepdim=True)).to(x.dtype)


@softmax.impl
def _eager(x: Any, y: Any) -> Any:
    shifted = x - x.max(dim=1, keepdim=True).values
    powers = shifted.exp()
    return powers / powers.sum(dim=1, keepdim=True)


softmax.impl(lambda x, y: torch.softmax(x, dim=1, out=y), name="torch", beats=_FUSED)
softmax.impl(lambda ctx: kernels.softmax, name="triton", needs=TRITON, beats=_FUSED)


@softmax.impl(needs=[cuda()], beats=_FUSED)
def _cuda(ctx: Any, *, dtype: str, rows: int, cols: int) -> Any:
    # Each keeps up to 32 fp32 values of its row.
    threads = min(1024, max(128, 1 << (cols // 32 - 1).bit_length()))
    element = {"BF16": 1} if dtype == "bf16" else {}
    run = load(ctx, __file__, "softmax_rows", COLS=cols, THREADS=threads, **element)
    return lambda x, y: run(rows, threads, x, y)


softmax.impl(lambda ctx: compiled(_eager), name="compile", needs=TRITON, tier="full")
