"""The experts of a mixture: many matrix multiplications whose rows differ in number."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later, sm_count, torch

# An expert's gate and up projections in DeepSeek-V2-Lite: 64 experts, width 2048, inner size 1408.
kernels = Later("perfsuite_compute.grouped_gemm_triton")
_N = {2048: 2816, 256: 136}  # n by k


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


def _memory_bytes(rows: int, experts: int, k: int, skew: str, impl: str) -> int:
    n, most = _N[k], max(sizes_of(rows, experts, skew))
    padded = experts * most * (k + n) if impl == "padded" else 0
    # The reference in float64: the result, twice, and one expert's operands at a time.
    wide = 8 * (2 * rows * n + most * k + n * k)
    return 2 * (rows * k + experts * n * k + 2 * rows * n + padded) + wide


def _work(rows: int, experts: int, k: int, skew: str, impl: str) -> Work:
    # Weights are read where an expert has rows.
    n, used = _N[k], sum(size > 0 for size in sizes_of(rows, experts, skew))
    read = 2 * (rows * k + used * n * k) + 4 * experts
    return Work(read, 2 * rows * n, 2 * rows * n * k, rate_dtype="bf16")


@operator(
    smoke={"rows": 256, "experts": 8, "k": 256, "skew": "zipf", "impl": "triton"},
    nightly=[
        {"rows": 16384, "experts": 64, "k": 2048, "skew": "zipf"},
        {"rows": 16384, "experts": 64, "k": 2048, "skew": "equal", "impl": "triton"},
    ],
    full=[
        {"rows": 256, "experts": 8, "k": 256, "skew": "zipf", "impl": "loop"},
        {"rows": 16384, "experts": [8, 64, 256], "k": 2048, "skew": ["equal", "zipf"]},
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["mixture-of-experts", "load_balance"],
    source="mixture of experts: chapter 10 of the book; grouped GEMM: Triton tutorial 08",
)
def grouped_gemm(rng: Any, *, rows: int, experts: int, k: int, skew: str) -> Any:
    """Multiply each expert's rows by its own weights [n, k], in bf16; rows are sorted by expert.

    ``loop`` calls cuBLAS once an expert, with the numbers of rows known to the host, which a real
    router has to wait for; none of the calls fills the GPU. ``padded`` copies all experts' rows
    into blocks as long as the longest, multiplies them as a batch and takes the rows back: with
    skewed rows it multiplies mostly zeros. ``torch`` is ``torch._grouped_mm`` (CUTLASS);
    ``triton`` takes tiles of all experts in turn. Both read the numbers on the GPU.
    """
    x, w = (rng.randn(*of, dtype="bfloat16") for of in ((rows, k), (experts, _N[k], k)))
    ends = torch.tensor(sizes_of(rows, experts, skew), device=x.device).cumsum(0).to(torch.int32)
    return x, w, ends, rng.empty(rows, _N[k], dtype="bfloat16")


@grouped_gemm.reference
def _reference(x: Any, w: Any, ends: Any, y: Any) -> Any:
    parts = zip(x.tensor_split(ends[:-1].tolist()), w, strict=True)
    return torch.cat([part.double() @ each.double().t() for part, each in parts])


@grouped_gemm.wrong
def _one_row_too_many(x: Any, w: Any, ends: Any, y: Any) -> Any:
    """Give the first row of each expert to the one before it, whose bound was taken as inside."""
    shifted = torch.where(ends > 0, ends + 1, 0).clamp_max(len(x))
    return _reference(x, w, shifted, y).to(y.dtype)


@grouped_gemm.impl
def _loop(ctx: Any, *, rows: int, experts: int, skew: str) -> Any:
    sizes = sizes_of(rows, experts, skew)

    def launch(x: Any, w: Any, ends: Any, y: Any) -> None:
        for part, each, out in zip(x.split(sizes), w, y.split(sizes), strict=True):
            if len(part):
                torch.mm(part, each.t(), out=out)

    return launch


@grouped_gemm.impl(needs=[cuda()])
def _padded(ctx: Any, *, rows: int, experts: int, skew: str) -> Any:
    sizes = sizes_of(rows, experts, skew)
    most = max(sizes)
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


@grouped_gemm.impl(needs=[cuda(), arch("sm_90+")])
def _torch(x: Any, w: Any, ends: Any, y: Any) -> Any:
    return torch._grouped_mm(x, w.mT, offs=ends)  # noqa: SLF001


grouped_gemm.impl(
    lambda ctx: kernels.launch(programs=sm_count()),
    name="triton",
    needs=[cuda(), arch("sm_90+"), package("triton")],
    beats=Beats(
        "loop",
        1.2,
        "PyTorch blog, 'Accelerating MoE's with a Triton Persistent Cache-Aware Grouped "
        "GEMM Kernel': 1.42 to 2.62 times a loop over the experts, DeepSeek-V3 16B on H100",
        at={"experts": 64, "rows": 16384},
        needs=(arch("sm_90"),),
    ),
)
