"""The experts of a mixture: many matrix multiplications whose rows differ in number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

# An expert's gate and up projections in DeepSeek-V2-Lite: 64 experts, width 2048, inner size 1408.
_SHAPES = {2048: 2816, 256: 136}  # n by k


def sizes_of(rows: int, experts: int, skew: str) -> tuple[int, ...]:
    """Return the rows of each expert: all equal, or as 1, 1/2, 1/3... (Zipf) in a fixed shuffle.

    With ``zipf`` one expert has none, as happens to real ones, and sizes fit no tile.
    """
    if skew == "equal":
        return (rows // experts,) * experts
    total = sum(1 / rank for rank in range(1, experts))
    falling = [int(rows / total / rank) for rank in range(1, experts)]
    falling[0] += rows - sum(falling)
    falling.append(0)
    # 5 has no factor in common with a power of two, so that each place is taken once.
    return tuple(falling[(5 * place + 3) % experts] for place in range(experts))


def _work(rows: int, experts: int, k: int, skew: str, impl: str) -> Work:
    n = _SHAPES[k]
    used = sum(size > 0 for size in sizes_of(rows, experts, skew))
    return Work(
        read_bytes=2 * (rows * k + used * n * k) + 4 * experts,
        write_bytes=2 * rows * n,
        flops=2 * rows * n * k,
        rate_dtype="bf16",
    )


def _memory_bytes(rows: int, experts: int, k: int, skew: str, impl: str) -> int:
    n, most = _SHAPES[k], max(sizes_of(rows, experts, skew))
    padded = experts * most * (k + n) if impl == "padded" else 0
    # The reference in float64: the result, one expert's operands at a time.
    return 2 * (rows * k + experts * n * k + 2 * rows * n + padded) + 8 * (
        rows * n + 2 * most * (k + n) + n * k
    )


@perfsuite.case(
    axes={
        "rows": [16384],
        "experts": [64],
        "k": [2048],
        "skew": ["equal", "zipf"],
        "impl": ["loop", "padded", "torch", "triton"],
    },
    smoke={"rows": [256], "experts": [8], "k": [256], "skew": ["zipf"], "impl": ["loop", "triton"]},
    full={"experts": [8, 64, 256]},
    full_only=[
        {"rows": [256], "impl": ["loop"]},
        {"skew": ["equal"], "impl": ["torch", "loop", "padded"]},
    ],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        arch("sm_90+").when(impl=("torch", "triton")),
        cuda().when(impl=("padded", "torch", "triton")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["mixture-of-experts", "load_balance"],
    source="mixture of experts: chapter 10 of the book; grouped GEMM: Triton tutorial 08",
)
def grouped_gemm(ctx: Any, rows: int, experts: int, k: int, skew: str, impl: str) -> Workload:
    """Multiply each expert's rows by its own weights [n, k], in bf16; rows are sorted by expert.

    ``loop`` calls cuBLAS once an expert, with the numbers of rows known to the host, which a real
    router has to wait for; none of the calls fills the GPU. ``padded`` copies all experts' rows
    into blocks as long as the longest, multiplies them as a batch and takes the rows back: with
    skewed rows it multiplies mostly zeros. ``torch`` is ``torch._grouped_mm`` (CUTLASS);
    ``triton`` takes tiles of all experts in turn. Both read the numbers on the GPU.
    """
    n = _SHAPES[k]
    sizes = sizes_of(rows, experts, skew)

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        import torch

        x = rng.randn(rows, k, dtype="bfloat16")
        w = rng.randn(experts, n, k, dtype="bfloat16")
        ends = torch.tensor(sizes, device=x.device).cumsum(0).to(torch.int32)
        return x, w, ends, rng.empty(rows, n, dtype="bfloat16")

    return Workload(
        fn=_launch_of(ctx, impl, sizes),
        make_inputs=make_inputs,
        reference=lambda x, w, ends, y: _reference(x, w, ends.tolist()),
        wrong=_one_row_too_many,
    )


def _launch_of(ctx: Any, impl: str, sizes: tuple[int, ...]) -> Callable[..., Any]:
    if impl == "loop":
        return lambda x, w, ends, y: _loop(x, w, sizes, y)
    if impl == "padded":
        return _padded(ctx, sizes)
    import torch

    if impl == "torch":
        return lambda x, w, ends, y: torch._grouped_mm(x, w.mT, offs=ends)  # noqa: SLF001
    from perfsuite_compute import grouped_gemm_triton

    programs = torch.cuda.get_device_properties(0).multi_processor_count
    launch: Callable[..., Any] = grouped_gemm_triton.launch(programs=programs)
    return launch


def _loop(x: Any, w: Any, sizes: tuple[int, ...], y: Any) -> None:
    import torch

    begin = 0
    for expert, size in enumerate(sizes):
        if size:
            torch.mm(x[begin : begin + size], w[expert].t(), out=y[begin : begin + size])
        begin += size


def _padded(ctx: Any, sizes: tuple[int, ...]) -> Callable[..., None]:
    import torch

    most, rows = max(sizes), sum(sizes)
    places = [expert * most + i for expert, size in enumerate(sizes) for i in range(size)]
    place = torch.tensor(places, device=ctx.place)
    # Where a block has no row it gets the first: what comes of it is not taken back.
    source = torch.zeros(len(sizes) * most, dtype=torch.int64, device=ctx.place)
    source[place] = torch.arange(rows, device=ctx.place)

    def launch(x: Any, w: Any, ends: Any, y: Any) -> None:
        blocks = x.index_select(0, source).view(len(sizes), most, -1)
        product = torch.bmm(blocks, w.mT)
        torch.index_select(product.flatten(0, 1), 0, place, out=y)

    return launch


def _reference(x: Any, w: Any, ends: list[int]) -> Any:
    """Multiply each expert's rows in float64."""
    import torch

    y = torch.empty(x.shape[0], w.shape[1], dtype=torch.float64, device=x.device)
    begin = 0
    for expert, end in enumerate(ends):
        torch.mm(x[begin:end].double(), w[expert].double().t(), out=y[begin:end])
        begin = end
    return y


def _one_row_too_many(x: Any, w: Any, ends: Any, y: Any) -> None:
    """Give the first row of each expert to the one before it, whose bound was taken as inside."""
    shifted = [min(end + 1, x.shape[0]) if end else 0 for end in ends.tolist()]
    y.copy_(_reference(x, w, shifted))


CASES: tuple[perfsuite.Case | Claim, ...] = (
    grouped_gemm,
    Claim(
        name="grouped_gemm_over_loop",
        case="grouped_gemm",
        faster={"impl": "triton"},
        than={"impl": "loop"},
        by=1.2,
        at={"experts": (64,), "rows": (16384,)},
        needs=(cuda(), arch("sm_90")),
        source="PyTorch blog, 'Accelerating MoE's with a Triton Persistent Cache-Aware Grouped "
        "GEMM Kernel': 1.42 to 2.62 times a loop over the experts, DeepSeek-V3 16B on H100",
    ),
)
