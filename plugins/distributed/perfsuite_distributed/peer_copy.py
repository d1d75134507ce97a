"""Copies from one GPU to the next: through the host, by the copy engine, by NCCL."""

from __future__ import annotations

from typing import Any

import perfsuite
from perfsuite_distributed.ranks import own

CHAPTER = "AI Systems Performance Engineering, chapter 4, NVLink and peer-to-peer access"
SERVERS = "stas00/ml-engineering 744d01e, accelerator benchmarks: 396.4 GB/s a direction, H200"


@perfsuite.case(
    axes={"ranks": [2, 4], "kib": [64, 4096, 262144], "impl": ["staged", "copy", "sendrecv"]},
    smoke={"ranks": [2], "kib": [4096]},
    full={"kib": [4, 64, 1024, 4096, 65536, 262144, 1048576]},
    waits=lambda impl, **_: impl == "sendrecv",
    needs=[perfsuite.cuda().when(impl=["staged", "copy"])],
    ranks="ranks",
    work=lambda ranks, kib, impl: perfsuite.Work(read_bytes=kib * 1024, link="nvlink"),
    memory_bytes=lambda ranks, kib, impl: 2 * kib * 1024,
    cold=False,
    source=f"{CHAPTER}; {SERVERS}",
)
def peer_copy(ctx: Any, *, ranks: int, kib: int, impl: str) -> perfsuite.Workload:
    """Send kib to the next rank's GPU while the previous one sends here; rates are a rank's.

    ``staged`` goes through page-locked memory of the host, as without peer access; ``copy`` is
    the copy engine's, into memory of the peer that this process sees; ``sendrecv`` is the
    library's pair of calls, received in the peer's own memory.
    """
    if impl == "sendrecv":
        return _exchanged(ctx.rank, ranks, kib * 256)
    return _pushed(ctx.rank, kib * 256, is_staged=impl == "staged")


def _pushed(rank: int, n: int, *, is_staged: bool) -> perfsuite.Workload:
    import torch

    peer = torch.device("cuda", 1)  # a rank's own GPU is the first it sees, the next rank's follows
    host = torch.empty(n if is_staged else 1, pin_memory=True)
    landing = torch.empty(n, device=peer)

    def through_host(x: Any) -> Any:
        host.copy_(x, non_blocking=True)
        here, there = torch.cuda.current_stream(), torch.cuda.current_stream(peer)
        there.wait_stream(here)
        with torch.cuda.device(peer):
            landing.copy_(host, non_blocking=True)
        here.wait_stream(there)
        return landing

    def directly(x: Any) -> Any:
        return landing.copy_(x, non_blocking=True)

    def wrong(x: Any) -> Any:
        # The last chunk of a chunked transfer is forgotten.
        landing.zero_()
        landing[: n - 256].copy_(x[: n - 256])
        return landing

    return perfsuite.Workload(
        fn=through_host if is_staged else directly,
        make_inputs=lambda rng: (own(rng.randn(n), rank),),
        reference=lambda x: x.cpu().to(peer),
        wrong=wrong,
        tolerance=0.0,
        # The copy waits for the peer's stream, which a capture may not.
        captures=False,
    )


def _exchanged(rank: int, ranks: int, n: int) -> perfsuite.Workload:
    import torch
    import torch.distributed as dist

    def fn(x: Any, y: Any) -> None:
        right = dist.P2POp(dist.isend, x, (rank + 1) % ranks)
        left = dist.P2POp(dist.irecv, y, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([right, left]):
            work.wait()

    def reference(x: Any, y: Any) -> Any:
        held = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(held, x)
        return held[(rank - 1) % ranks]

    def wrong(x: Any, y: Any) -> None:
        fn(x, y)
        y[n - 256 :] = x[n - 256 :]  # the end of the buffer is a rank's own

    return perfsuite.Workload(
        fn=fn,
        make_inputs=lambda rng: (own(rng.randn(n), rank), rng.empty(n)),
        reference=reference,
        wrong=wrong,
        tolerance=0.0,
    )


CASES = (
    peer_copy,
    perfsuite.Claim(
        name="direct_2x",
        case="peer_copy",
        faster={"impl": "copy"},
        than={"impl": "staged"},
        by=2.0,
        source=f"{CHAPTER}; a staged byte crosses PCIe twice, at 55 GB/s at most, and NVLink once",
        at={"kib": (262144,)},
        needs=(perfsuite.cuda(),),
    ),
)
