"""Matrix multiplication in awkward sizes: rows that are not aligned, tiles that fill no wave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

# (m, n, k) by what each shows. The tiles of `tiles` and `stream_k` are 128 x 128: 12 x 11 of them
# are one for each of an H200's 132 multiprocessors, 13 x 11 are one wave and a twelfth of the next.
# What each can reach there: 128 steps of k a program for one wave, 256 for `tiles` with two, 139
# for `stream_k`. cuBLAS has tiles of other heights, of which one wave may do.
WAVE = ((1536, 1408, 8192), (1601, 1408, 8192))
# The inner size of a SwiGLU layer of width 4096 as it comes out of 8/3 x 4096, and as it should be.
ALIGNMENT = ((4096, 10922, 4096), (4096, 10944, 4096))
# Four tiles in all: only a split of k gives the other multiprocessors something to do.
_FEW = ((256, 256, 65536),)
_SMALL = ((513, 520, 512),)
_IMPLS = ("torch", "tiles", "stream_k")


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    # Bulk copies, which the kernels are made of, cannot take rows that are not aligned.
    shapes = WAVE + _FEW + _SMALL + (ALIGNMENT if impl == "torch" else ())
    return (m, n, k) in shapes


def _work(m: int, n: int, k: int, impl: str) -> Work:
    return Work(
        read_bytes=2 * (m * k + k * n),
        write_bytes=2 * m * n,
        flops=2 * m * n * k,
        rate_dtype="bf16",
    )


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_compute.reference import matmul_bytes

    return 2 * (m * k + k * n + 2 * m * n) + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [1536, 1601, 4096],
        "n": [1408, 10922, 10944],
        "k": [4096, 8192],
        "impl": list(_IMPLS),
    },
    smoke={"m": [513], "n": [520], "k": [512]},
    full={"m": [256, 1536, 1601, 4096], "n": [256, 1408, 10922, 10944], "k": [4096, 8192, 65536]},
    only=_is_asked,
    full_only=[{"m": [513], "impl": ["torch", "tiles"]}, {"m": [1601], "impl": ["tiles"]}],
    needs=(
        package("torch"),
        package("triton").when(impl=("tiles", "stream_k")),
        cuda().when(impl=("tiles", "stream_k")),
        arch("sm_90+").when(impl=("tiles", "stream_k")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    version=2,
    tags=["tensor-cores", "wave-quantisation", "stream-k"],
    source="Osama et al., Stream-K (arXiv:2301.03598); dimensions and alignment: NVIDIA, Matrix "
    "Multiplication Background User's Guide",
)
def gemm_shapes(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
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

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        a, b = rng.randn(m, k, dtype="bfloat16"), rng.randn(k, n, dtype="bfloat16")
        return a, b, rng.empty(m, n, dtype="bfloat16")

    return Workload(
        fn=_launch_of(ctx, m, n, k, impl),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=_without_shared,
    )


def _launch_of(ctx: Any, m: int, n: int, k: int, impl: str) -> Callable[..., None]:
    import torch

    if impl == "torch":
        return lambda a, b, c: torch.mm(a, b, out=c)
    from perfsuite_compute import stream_k_triton

    programs = torch.cuda.get_device_properties(0).multi_processor_count
    is_streamed = impl == "stream_k"
    launch: Callable[..., None] = stream_k_triton.launch(
        m, n, k, is_streamed=is_streamed, place=ctx.place, programs=programs
    )
    return launch


def _reference(a: Any, b: Any, c: Any) -> Any:
    from perfsuite_compute.reference import matmul

    return matmul(a, b)


def _without_shared(a: Any, b: Any, c: Any) -> None:
    """Leave out what another program had of the last tile: the last half of k, in its columns."""
    import torch

    half = a.shape[1] // 2
    torch.mm(a, b, out=c)
    c[:, -128:] = a[:, :half] @ b[:half, -128:]


CASES: tuple[perfsuite.Case | Claim, ...] = (
    gemm_shapes,
    Claim(
        name="gemm_aligned_rows",
        case="gemm_shapes",
        faster={"n": 10944},
        than={"n": 10922},
        by=1.2,
        at={"m": (4096,), "impl": ("torch",)},
        needs=(cuda(),),
        source="stas00/ml-engineering, swiglu: an inner size of 10944 in place of 10922 makes the "
        "matrix multiplication 46 % faster",
    ),
)
