"""Copies from one GPU to the next: through the host, by the copy engine, by NCCL."""

from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_distributed.ranks import BOOK, of_all_ranks, own, pass_on

_NVLINK = f"{BOOK} 4, NVLink and peer-to-peer access"
# A rank's own GPU is the first it sees, the next rank's follows.
_PEER = "cuda:1"


@perfsuite.operator(
    smoke={"ranks": 2, "kib": 4096, "impl": ["staged", "copy"]},
    nightly={"ranks": [2, 4], "kib": [64, 4096, 262144]},
    full={"ranks": [2, 4], "kib": [4, 64, 1024, 4096, 65536, 262144, 1048576]},
    needs=[perfsuite.cuda().when(impl=["staged", "copy"])],
    ranks="ranks",
    work=lambda ranks, kib, impl: perfsuite.Work(kib * 1024, link="nvlink"),
    tolerance=0.0,
    # The copy waits for the peer's stream, which a capture may not.
    captures=lambda *, impl: impl == "sendrecv",
    cold=False,
    source=f"{_NVLINK}; stas00/ml-engineering 744d01e, accelerator benchmarks: 396.4 GB/s a "
    "direction, H200",
)
def peer_copy(rng: Any, *, ranks: int, kib: int, impl: str) -> Any:
    """Send kib to the next rank's GPU while the previous one sends here; rates are a rank's.

    ``staged`` goes through page-locked memory of the host, as without peer access; ``copy`` is
    the copy engine's, into memory of the peer that this process sees; ``sendrecv`` is the
    library's pair of calls, received in the peer's own memory.
    """
    x = own(rng.randn(kib * 256))
    return (x, rng.empty(kib * 256)) if impl == "sendrecv" else (x,)


@peer_copy.reference
def _reference(x: Any, *y: Any) -> Any:
    return of_all_ranks(x)[torch.distributed.get_rank() - 1] if y else x.cpu().to(_PEER)


@peer_copy.impl
def _staged(ctx: Any, *, kib: int) -> Any:
    host = torch.empty(kib * 256, pin_memory=True)
    landing = torch.empty(kib * 256, device=_PEER)

    def through_host(x: Any) -> Any:
        host.copy_(x, non_blocking=True)
        here, there = torch.cuda.current_stream(), torch.cuda.current_stream(_PEER)
        there.wait_stream(here)
        with torch.cuda.device(_PEER):
            landing.copy_(host, non_blocking=True)
        here.wait_stream(there)
        return landing

    return through_host


@peer_copy.impl(
    beats=perfsuite.Beats(
        "staged",
        6.0,
        f"{_NVLINK}; a staged byte crosses PCIe twice, at 55 GB/s at most, and NVLink once",
        at={"kib": 262144},
        needs=(perfsuite.cuda(),),
        name="direct",
    ),
)
def _copy(ctx: Any, *, kib: int) -> Any:
    landing = torch.empty(kib * 256, device=_PEER)
    return lambda x: landing.copy_(x, non_blocking=True)


peer_copy.impl(pass_on, name="sendrecv")
