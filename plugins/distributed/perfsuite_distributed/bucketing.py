"""Many small reductions against few large ones: why gradients travel in buckets."""

from functools import partial
from typing import Any

from perfsuite import Claim, Metric, count_operators, cuda, operator
from perfsuite.gpu import torch
from perfsuite_distributed.ranks import BOOK, NCCL_TESTS, mean, over_links, own, true_mean

_SMALL, _LARGE = {"tensors": 64, "kib": 64}, {"tensors": 1000, "kib": 4096}


@operator(
    smoke={"ranks": 2, **_SMALL, "impl": ["each", "bucket"]},
    nightly=[{"ranks": [2, 4], **size} for size in (_SMALL, _LARGE)],
    ranks="ranks",
    work=lambda ranks, tensors, kib, impl: over_links("all_reduce", tensors * kib * 1024, ranks),
    memory_bytes=lambda ranks, tensors, kib, impl: 2 * tensors * kib * 1024,
    in_place=True,
    cold=False,
    metrics=[Metric("all_reduces", better="equal")],
    source=f"{BOOK} 4, bucketed gradients; {NCCL_TESTS}",
)
def bucketing(rng: Any, *, ranks: int, tensors: int, kib: int) -> tuple[Any, ...]:
    """Average many fp32 tensors of kib over the ranks; rates are busbw.

    ``each`` reduces tensor by tensor; ``bucket`` copies them into one buffer, reduces it and
    copies them back, as DistributedDataParallel does; ``one`` has them side by side from the start.
    """
    return (own(rng.randn(tensors * kib * 256)).view(tensors, -1),)


bucketing.reference(true_mean)


@bucketing.exact
def _all_reduces(launch: Any, x: Any) -> dict[str, float]:
    return {"all_reduces": count_operators(lambda: launch(x))["all_reduce"]}


@bucketing.impl
def _each(x: Any) -> Any:
    for part in x.unbind():
        mean(part)
    return x


@bucketing.impl
def _bucket(ctx: Any, *, tensors: int, kib: int) -> Any:
    buffer = torch.empty(tensors * kib * 256, device=ctx.device)

    def average(x: Any) -> Any:
        torch.cat(x.unbind(), out=buffer)
        mean(buffer)
        for tensor, part in zip(x.unbind(), buffer.view_as(x).unbind(), strict=True):
            tensor.copy_(part)
        return x

    return average


bucketing.impl(mean, name="one")

_beats_each = partial(Claim, case="bucketing", than={"impl": "each"}, needs=(cuda(),))
ONE_LARGE_3X = _beats_each(
    name="one_large_3x",
    faster={"impl": "one"},
    by=3.2,
    source="stas00/ml-engineering 744d01e: one all-reduce of 4 GB against 1000 of 4 MB, 3722 "
    "against 1146 Gb/s of busbw",
    at={"tensors": (1000,), "kib": (4096,)},
)
BUCKET_BEATS_EACH = _beats_each(
    name="bucket_beats_each",
    faster={"impl": "bucket"},
    by=1.0,
    source=f"{BOOK} 4, bucketed gradients; Li et al., PyTorch Distributed, VLDB 2020",
    at={"tensors": (64,), "kib": (64,)},
)
