"""Many small reductions against few large ones: why gradients travel in buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_distributed.ranks import NCCL_TESTS, bus_bytes, mean, own, true_mean

CHAPTER = "AI Systems Performance Engineering, chapter 4, bucketed gradients"
BUCKETS = "stas00/ml-engineering 744d01e: one all-reduce of 4 GB against 1000 of 4 MB, 3722 against"


def _work(*, ranks: int, tensors: int, kib: int, impl: str) -> perfsuite.Work:
    del impl
    size = bus_bytes("all_reduce", tensors * kib * 1024, ranks)
    return perfsuite.Work(read_bytes=size, link="nvlink")


@perfsuite.case(
    axes={
        "ranks": [2, 4],
        "tensors": [64, 1000],
        "kib": [64, 4096],
        "impl": ["each", "bucket", "one"],
    },
    smoke={"ranks": [2], "tensors": [64], "kib": [64]},
    only=lambda ranks, tensors, kib, impl: (tensors == 1000) == (kib == 4096),  # noqa: PLR2004
    ranks="ranks",
    waits=lambda impl, **_: impl == "one",
    work=_work,
    memory_bytes=lambda ranks, tensors, kib, impl: 2 * tensors * kib * 1024,
    cold=False,
    metrics=[perfsuite.Metric("all_reduces", better="equal")],
    source=f"{CHAPTER}; {NCCL_TESTS}",
)
def bucketing(ctx: Any, *, ranks: int, tensors: int, kib: int, impl: str) -> perfsuite.Workload:
    """Average many fp32 tensors of kib over the ranks; rates are busbw.

    ``each`` reduces tensor by tensor; ``bucket`` copies them into one buffer, reduces it and
    copies them back, as DistributedDataParallel does; ``one`` has them side by side from the start.
    """
    del ranks
    n = kib * 256
    calls: list[None] = []

    def counted(tensor: Any) -> None:
        calls.append(None)
        mean(tensor)

    average = _average(impl, counted, tensors * n, ctx.device)

    def exact() -> dict[str, float]:
        import torch

        calls.clear()
        average(torch.zeros(tensors, n, device=ctx.device))
        return {"all_reduces": len(calls)}

    def wrong(x: Any) -> Any:
        average(x)
        x[-1] = own(x[-1], ctx.rank)  # the last, half-full bucket was never sent
        return x

    return perfsuite.Workload(
        fn=lambda x: average(x) or x,
        make_inputs=lambda rng: (own(rng.randn(tensors * n), ctx.rank).view(tensors, n),),
        reference=true_mean,
        wrong=wrong,
        in_place=True,
        exact=exact,
    )


def _average(
    impl: str, reduce: Callable[[Any], None], size: int, device: str
) -> Callable[[Any], None]:
    import torch

    buffer = torch.empty(size if impl == "bucket" else 0, device=device)

    def each(x: Any) -> None:
        for tensor in x.unbind():
            reduce(tensor)

    def bucket(x: Any) -> None:
        torch.cat([tensor.view(-1) for tensor in x.unbind()], out=buffer)
        reduce(buffer)
        for tensor, part in zip(x.unbind(), buffer.view_as(x).unbind(), strict=True):
            tensor.copy_(part)

    def one(x: Any) -> None:
        reduce(x)

    return {"each": each, "bucket": bucket, "one": one}[impl]


CASES = (
    bucketing,
    perfsuite.Claim(
        name="one_large_3x",
        case="bucketing",
        faster={"impl": "one"},
        than={"impl": "each"},
        by=3.2,
        source=f"{BUCKETS} 1146 Gb/s of busbw",
        at={"tensors": (1000,), "kib": (4096,)},
        needs=(perfsuite.cuda(),),
    ),
    perfsuite.Claim(
        name="bucket_beats_each",
        case="bucketing",
        faster={"impl": "bucket"},
        than={"impl": "each"},
        by=1.0,
        source=f"{CHAPTER}; Li et al., PyTorch Distributed, VLDB 2020",
        at={"tensors": (64,), "kib": (64,)},
        needs=(perfsuite.cuda(),),
    ),
)
