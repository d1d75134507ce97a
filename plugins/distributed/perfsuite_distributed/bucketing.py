"""Many small reductions against few large ones: why gradients travel in buckets."""

from __future__ import annotations

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_distributed.ranks import BOOK, NCCL_TESTS, bus_bytes, mean, own, true_mean

_SMALL, _LARGE = {"tensors": 64, "kib": 64}, {"tensors": 1000, "kib": 4096}
_IMPLS = ["each", "bucket", "one"]


@perfsuite.case(
    smoke={"ranks": 2, **_SMALL, "impl": ["each", "bucket"]},
    nightly=[{"ranks": [2, 4], **size, "impl": _IMPLS} for size in (_SMALL, _LARGE)],
    ranks="ranks",
    work=lambda ranks, tensors, kib, impl: perfsuite.Work(
        bus_bytes("all_reduce", tensors * kib * 1024, ranks), link="nvlink"
    ),
    memory_bytes=lambda ranks, tensors, kib, impl: 2 * tensors * kib * 1024,
    cold=False,
    metrics=[perfsuite.Metric("all_reduces", better="equal")],
    source=f"{BOOK} 4, bucketed gradients; {NCCL_TESTS}",
)
def bucketing(ctx: Any, *, ranks: int, tensors: int, kib: int, impl: str) -> perfsuite.Workload:
    """Average many fp32 tensors of kib over the ranks; rates are busbw.

    ``each`` reduces tensor by tensor; ``bucket`` copies them into one buffer, reduces it and
    copies them back, as DistributedDataParallel does; ``one`` has them side by side from the start.
    """
    n = kib * 256
    buffer = torch.empty(tensors * n if impl == "bucket" else 0, device=ctx.device)
    calls: list[None] = []

    def reduce(x: Any) -> None:
        calls.append(None)
        mean(x)

    def average(x: Any) -> Any:
        if impl == "bucket":
            torch.cat([tensor.view(-1) for tensor in x.unbind()], out=buffer)
            reduce(buffer)
            for tensor, part in zip(x.unbind(), buffer.view_as(x).unbind(), strict=True):
                tensor.copy_(part)
        else:
            for part in x.unbind() if impl == "each" else (x,):
                reduce(part)
        return x

    def exact() -> dict[str, float]:
        calls.clear()
        average(torch.zeros(tensors, n, device=ctx.device))
        return {"all_reduces": len(calls)}

    def wrong(x: Any) -> Any:
        average(x)
        x[-1] = own(x[-1])  # the last, half-full bucket was never sent
        return x

    return perfsuite.Workload(
        fn=average,
        make_inputs=lambda rng: (own(rng.randn(tensors * n)).view(tensors, n),),
        reference=true_mean,
        wrong=wrong,
        in_place=True,
        exact=exact,
    )


_beats_each = partial(
    perfsuite.Claim, case="bucketing", than={"impl": "each"}, needs=(perfsuite.cuda(),)
)
CASES = (
    bucketing,
    _beats_each(
        name="one_large_3x",
        faster={"impl": "one"},
        by=3.2,
        source="stas00/ml-engineering 744d01e: one all-reduce of 4 GB against 1000 of 4 MB, 3722 "
        "against 1146 Gb/s of busbw",
        at={"tensors": (1000,), "kib": (4096,)},
    ),
    _beats_each(
        name="bucket_beats_each",
        faster={"impl": "bucket"},
        by=1.0,
        source=f"{BOOK} 4, bucketed gradients; Li et al., PyTorch Distributed, VLDB 2020",
        at={"tensors": (64,), "kib": (64,)},
    ),
)
