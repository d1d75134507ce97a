"""Adapters of low rank, another one for each row of a batch, added to a product that all share."""

from typing import Any

from perfsuite import Beats, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, torch

kernels = Later("perfsuite_inference.lora_triton")
# Llama-3-8B's projection of queries, and a usual rank.
WIDTH, RANK = 4096, 16


def adapters_of(batch: int, adapters: int) -> list[int]:
    """Return the adapter of each row: each comes as often as any other, neighbours differ.

    5 has no factor in common with a power of two.
    """
    return [(5 * row + 3) % adapters for row in range(batch)]


@operator(
    smoke={"dtype": "fp32", "batch": 8, "adapters": 4, "impl": "gather"},
    nightly=[
        {"dtype": "bf16", "batch": 64, "adapters": 64},
        {"dtype": "bf16", "batch": 256, "adapters": 8},
        {"dtype": "bf16", "batch": 256, "adapters": 256, "impl": ["gather", "triton"]},
    ],
    full={"dtype": "fp32", "batch": 8, "adapters": 4, "impl": "loop"},
    needs=[cuda().when(dtype="bf16")],
    tags=["lora", "decode"],
    source="Punica (arXiv:2310.18547); LoRA (arXiv:2106.09685); Llama-3-8B's model card",
)
def lora(rng: Any, *, dtype: str, batch: int, adapters: int) -> tuple[Any, ...]:
    """Add x A B to each row of a product, with the row's own A and B of rank 16 and width 4096.

    ``loop`` takes the rows of each adapter together, which the host has to know, and makes some
    six launches an adapter. ``gather`` copies each row's adapter and multiplies them as a batch.
    ``triton`` shrinks and expands in two kernels, which read the adapters where they lie. The work
    is one read of each adapter, and of the rows.
    """
    name = DTYPES[dtype]
    x, base = (rng.randn(batch, WIDTH, dtype=name) for _ in range(2))
    a = rng.randn(adapters, RANK, WIDTH, dtype=name) * WIDTH**-0.5
    b = rng.randn(adapters, WIDTH, RANK, dtype=name)
    ids = torch.tensor(adapters_of(batch, adapters), device=x.device)
    return x, a, b, ids, base, rng.empty(batch, WIDTH, dtype=name)


@lora.reference
def add_rows(x: Any, a: Any, b: Any, ids: Any, base: Any, _out: Any) -> Any:
    """Return each row's sum in float64."""
    rows = zip(x.double(), base.double(), ids.tolist(), strict=True)
    return torch.stack([y + b[at].double() @ (a[at].double() @ row) for row, y, at in rows])


@lora.wrong
def _of_the_next_row(x: Any, a: Any, b: Any, ids: Any, base: Any, out: Any) -> Any:
    """Give each row the next one's adapter."""
    return _gather(x, a, b, ids.roll(-1), base, out)


@lora.wrong
def _by_row(x: Any, a: Any, b: Any, ids: Any, base: Any, out: Any) -> Any:
    """Expand by the adapter that has the row's number."""
    others = torch.arange(len(ids), device=ids.device) % len(b)
    return torch.baddbmm(base[:, None], torch.bmm(x[:, None], a[ids].mT), b[others].mT)[:, 0]


@lora.impl
def _loop(ctx: Any, *, batch: int, adapters: int) -> Any:
    of = torch.tensor(adapters_of(batch, adapters), device=ctx.place)
    rows = [(of == adapter).nonzero()[:, 0] for adapter in range(adapters)]

    def launch(x: Any, a: Any, b: Any, ids: Any, base: Any, out: Any) -> None:
        for own, shrink, expand in zip(rows, a, b, strict=True):
            out.index_copy_(0, own, torch.addmm(base[own], x[own] @ shrink.t(), expand.t()))

    return launch


@lora.impl
def _gather(x: Any, a: Any, b: Any, ids: Any, base: Any, _out: Any) -> Any:
    small = torch.bmm(x[:, None], a[ids].mT)
    return torch.baddbmm(base[:, None], small, b[ids].mT)[:, 0]


@lora.impl(
    needs=TRITON,
    beats=Beats(
        "gather",
        2.0,
        "counted: gathering moves the adapters three times (read, written, read), the kernels once",
        at={"batch": 256, "adapters": 256},
    ),
)
def _triton(ctx: Any) -> Any:
    return kernels.add
