"""Matrix multiplication in awkward sizes: rows that are not aligned, tiles that fill no wave."""

from typing import Any

from perfsuite import Beats, Claim, arch, cuda, operator, package
from perfsuite.gpu import Later, matmul64, mm, sm_count, torch

_OWN = [arch("sm_90+"), cuda(), package("triton")]


# The tiles of `tiles` and `stream_k` are 128 x 128: 12 x 11 of them (1536 rows) are one for each of
# an H200's 132 multiprocessors, 13 x 11 (1601) are one wave and a twelfth of the next. What each
# can reach there: 128 steps of k a program for one wave, 256 for `tiles` with two, 139 for
# `stream_k`. cuBLAS has tiles of other heights, of which one wave may do. 10922 is the inner size
# of a SwiGLU layer of width 4096 as it comes out of 8/3 x 4096, 10944 as it should be; bulk copies,
# which the kernels are made of, cannot take rows that are not aligned. 256 x 256 are four tiles:
# only a split of k gives the other multiprocessors something to do. Products of a few rows are what
# heads, routers and adapters ask for.
@operator(
    smoke={"m": 513, "n": 520, "k": 512, "impl": "stream_k"},
    nightly=[
        {"m": 1536, "n": 1408, "k": 8192},
        {"m": 1601, "n": 1408, "k": 8192, "impl": ["torch", "stream_k"]},
        {"m": 4096, "n": [10922, 10944], "k": 4096, "impl": "torch"},
        {"m": [16, 128, 512], "n": 1024, "k": 1024, "impl": "torch"},
    ],
    full=[
        {"m": 513, "n": 520, "k": 512},
        {"m": 1601, "n": 1408, "k": 8192},
        {"m": 256, "n": 256, "k": 65536},
        {"m": [16, 128, 512], "n": [256, 1024, 4096], "k": [256, 1024], "impl": "torch"},
    ],
    rate_dtype="bf16",
    version=2,
    tags=["tensor-cores", "wave-quantisation", "stream-k"],
    source="Osama et al., Stream-K (arXiv:2301.03598); dimensions and alignment: NVIDIA, Matrix "
    "Multiplication Background User's Guide",
)
def gemm_shapes(rng: Any, *, m: int, n: int, k: int) -> Any:
    """Multiply two bf16 matrices of sizes that libraries and people trip over.

    A row of 10922 elements starts at no multiple of 16 bytes, so that neither bulk copies nor wide
    loads fit it: 10944 is more work in less time. ``tiles`` gives each program whole tiles, and
    with 143 of them for 132 multiprocessors most wait for the second wave; ``stream_k`` splits the
    k of the eleven that are left over among all, and adds up the parts (the paper's hybrid). Whole
    tiles stay whole: with equal shares of all steps, the paper's first form, each program is at
    another step of k than its neighbours, and they no longer read the same rows and columns at the
    same time. ``torch`` is cuBLAS, which picks another tile for each shape. On an H200 ``stream_k``
    takes 60.8 us of 1601 rows where ``tiles`` takes 85.1, and cuBLAS 46.6 (77 %): the parts cost a
    second start of the pipeline, a trip through L2 and, last, their adding up; 12 x 11 tiles 136
    high would be one wave, but Triton's are powers of two. Of 1536 rows, one wave of tiles, it
    reaches 97 %.
    """
    a, b = rng.randn(m, k, dtype="bfloat16"), rng.randn(k, n, dtype="bfloat16")
    return a, b, rng.empty(m, n, dtype="bfloat16")


gemm_shapes.reference(lambda a, b, c: matmul64(a, b))


@gemm_shapes.wrong
def _without_shared(a: Any, b: Any, c: Any, *, k: int) -> None:
    """Leave out what another program had of the last tile: the last half of k, in its columns."""
    torch.mm(a, b, out=c)
    c[:, -128:] = a[:, : k // 2] @ b[: k // 2, -128:]


gemm_shapes.impl(mm, name="torch")


@gemm_shapes.impl(needs=_OWN, name="tiles")
@gemm_shapes.impl(needs=_OWN)
def _stream_k(ctx: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    launch = Later("perfsuite_compute.stream_k_triton").launch
    is_streamed = impl == "stream_k"
    return launch(m, n, k, is_streamed=is_streamed, place=ctx.place, programs=sm_count())


@operator(
    nightly=[
        {"b": 64, "m": 1024, "n": 1024, "k": 128},
        {"b": 4096, "m": 64, "n": 64, "k": 64, "impl": "torch"},
        {"b": 1, "m": 1024, "n": 1024, "k": 128, "impl": "torch"},
        # pytorch#114911: one dot product was 34 times slower as a batch.
        {"b": 1, "m": 1, "n": 1, "k": 131072, "impl": "torch"},
    ],
    full={"b": 4, "m": 67, "n": 65, "k": 129},
    rate_dtype="bf16",
    tags=["tensor-cores", "library"],
    source="scores of 64 heads, and 4096 small products: cuBLAS, cublasGemmStridedBatchedEx",
)
def bmm(rng: Any, *, b: int, m: int, n: int, k: int) -> Any:
    """Multiply b pairs of bf16 matrices, in one call (``torch``) or a call each (``loop``)."""
    sizes = ((b, m, k), (b, k, n))
    x, y = (rng.randn(*size, dtype="bfloat16") for size in sizes)
    return x, y, rng.empty(b, m, n, dtype="bfloat16")


bmm.reference(lambda x, y, out: x.double() @ y.double())


# Takes the second matrix of the pair before, or a single one turned by a row.
bmm.wrong(lambda x, y, out: torch.bmm(x, y.roll(1, int(len(y) == 1))))


@bmm.impl(
    name="torch",
    beats=Beats(
        "loop",
        3.0,
        "pytorch/pytorch#182631: one launch for matrices of a size is 3 to 4.5 times as fast as a "
        "loop of mm, in bf16 on an H100 that one product does not fill",
        {"b": 64},
        (cuda(),),
    ),
)
def _bmm(x: Any, y: Any, out: Any) -> None:
    torch.bmm(x, y, out=out)


@bmm.impl
def _loop(x: Any, y: Any, out: Any) -> None:
    for at in range(len(x)):
        torch.mm(x[at], y[at], out=out[at])


GEMM_ALIGNED_ROWS = Claim(
    name="gemm_aligned_rows",
    case="gemm_shapes",
    faster={"n": 10944},
    than={"n": 10922},
    by=1.2,
    at={"m": (4096,), "impl": ("torch",)},
    needs=(cuda(),),
    source="stas00/ml-engineering, swiglu: an inner size of 10944 in place of 10922 makes the "
    "matrix multiplication 46 % faster",
)
