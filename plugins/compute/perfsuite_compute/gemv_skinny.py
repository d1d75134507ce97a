"""A linear layer with few rows: the weights are read once, and nothing else takes time."""

from typing import Any

from perfsuite import cuda, operator
from perfsuite.gpu import TRITON, Later, load, matmul64, sm_count, torch

kernels = Later("perfsuite_compute.skinny_triton")
_ROWS_OF_A_BLOCK = 8
# n and k of a layer of other models: Qwen3-8B, Gemma-2-9B and Phi-4 (down), gpt-oss-20b (queries,
# keys and values as one), DeepSeek-V3 (both latents as one).
_OTHERS: list[dict[str, Any]] = [
    {"m": [1, 4, 16, 64, 256], "n": n, "k": k, "impl": "torch"}
    for n, k in ((4096, 12288), (3584, 14336), (5120, 17920), (5120, 2880), (2112, 7168))
]


# n and k of Llama-3.1-8B: the gate and up projections as one, and the down projection; the latter
# with three outputs more, which fill no tile; and one for a CPU.
@operator(
    smoke={"m": 1, "n": 2048, "k": 2048, "impl": ["triton", "cuda"]},
    nightly=[
        {"m": 1, "n": 4096, "k": 14336},
        {"m": 1, "n": 4099, "k": 14336, "impl": ["triton", "cuda"]},
        {"m": 16, "n": 4096, "k": 14336, "impl": ["torch", "triton"]},
    ],
    full=[
        {"m": 1, "n": 2048, "k": 2048, "impl": "torch"},
        {"m": 1, "n": 4099, "k": 14336, "impl": "torch"},
        {"m": [4, 64], "n": 4096, "k": 14336, "impl": ["torch", "triton"]},
        {"m": [1, 4, 16, 64], "n": 28672, "k": 4096, "impl": ["torch", "triton"]},
        {"m": 1, "n": 28672, "k": 4096, "impl": "cuda"},
        *_OTHERS,
    ],
    rate_dtype="bf16",
    tags=["decoding", "split-k"],
    source="decoding is bound by memory: chapter 10 of the book; split-K: Osama et al., Stream-K",
)
def gemv_skinny(rng: Any, *, m: int, n: int, k: int) -> Any:
    """Multiply m rows of x by the transpose of w [n, k], as a linear layer does, in bf16.

    Each weight is read once and used m times: below some 200 rows the time is that of the reading.
    ``torch`` is cuBLAS, which has tiles of outputs too few for all multiprocessors where n is
    small. ``triton`` splits k so that there are programs for all of them; ``cuda`` has a warp for
    each output and no tensor cores, which one row does not need. For 4096 outputs ``cuda`` took
    about 28 us on an H200 (95 % of the ceiling), the other two about 31 (83, 85 %): so short a
    kernel spends the rest on starting, filling its SMs and draining them.
    """
    x, w = rng.randn(m, k, dtype="bfloat16"), rng.randn(n, k, dtype="bfloat16")
    return x, w, rng.empty(m, n, dtype="bfloat16")


gemv_skinny.reference(lambda x, w, y: matmul64(x, w.t()))


# Leave out the last of many parts of k, as a split that rounds its count down does.
gemv_skinny.wrong(lambda x, w, y: x[:, :-64] @ w[:, :-64].t())


@gemv_skinny.impl
def _torch(x: Any, w: Any, y: Any) -> None:
    torch.mm(x, w.t(), out=y)


@gemv_skinny.impl(needs=TRITON)
def _triton(ctx: Any, *, m: int, n: int, k: int) -> Any:
    programs = kernels.PROGRAMS_PER_SM * sm_count()
    return kernels.launch(m, n, k, place=ctx.place, programs=programs)


@gemv_skinny.impl(needs=[cuda()])
def _cuda(ctx: Any, *, n: int, k: int) -> Any:
    run = load(ctx, __file__, "gemv_rows", N=n, K=k)
    return lambda x, w, y: run(-(-n // _ROWS_OF_A_BLOCK), 32 * _ROWS_OF_A_BLOCK, x, w, y)
