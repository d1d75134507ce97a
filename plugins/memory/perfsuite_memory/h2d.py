"""Transfers between host and device: from pageable and page-locked memory, and by a kernel."""

from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_memory.stream import stream

BLOG = "Harris, How to Optimize Data Transfers in CUDA C/C++, NVIDIA Technical Blog, 2012"
_OVER_PAGEABLE = perfsuite.Beats(
    "pageable",
    2.0,
    f"{BLOG}: more than twice as fast (2.3 to 5.8 GB/s in, 2.3 to 6.0 GB/s out)",
    at={"mib": (16, 64, 256)},
)


def _work(*, mib: int, direction: str, impl: str) -> perfsuite.Work:
    # Each byte crosses the link once.
    into, out = (mib * 2**20, 0) if direction == "h2d" else (0, mib * 2**20)
    return perfsuite.Work(read_bytes=into, write_bytes=out, link="pcie")


@perfsuite.operator(
    smoke={"mib": 16, "direction": "h2d", "impl": ["pageable", "pinned"]},
    nightly={"mib": [16, 256], "direction": ["h2d", "d2h"], "impl": "pinned"},
    full={"mib": [1, 16, 64, 256, 1024], "direction": ["h2d", "d2h"]},
    needs=[perfsuite.cuda()],
    work=_work,
    regime=perfsuite.Regime.END_TO_END,
    tolerance=0.0,
    ceilings={"pcie": lambda mib, impl, **_: (mib, impl) == (256, "pinned")},
    source=f"{BLOG}; CUDA C++ Best Practices Guide, Zero Copy",
)
def h2d(rng: Any, *, mib: int, direction: str, impl: str) -> Any:
    """Copy a buffer over the link and wait for it; pageable memory goes through a staging copy.

    zero_copy has no copy engine: stream's copy kernel reads page-locked memory over the link, or
    writes it, at the host's own address, which is valid on the GPU.
    """
    n, host = mib * 2**20 // 4, "host" if impl == "pageable" else "pinned"
    places = (host, "device") if direction == "h2d" else ("device", host)
    return rng.randn(n, place=places[0]), rng.empty(n, place=places[1])


@h2d.reference
def _by_other_path(source: Any, target: Any, *, impl: str) -> Any:
    """Take the path that the implementation does not take, by chunks."""
    is_pinned = impl != "pageable"
    parts = []
    for part in source.split(2**22):
        if source.is_cuda:
            landing = torch.empty(part.shape, dtype=part.dtype, pin_memory=not is_pinned)
            parts.append(landing.copy_(part))
        else:
            staged = part.clone() if is_pinned else part.pin_memory()
            parts.append(staged.to(target.device))
    return torch.cat(parts)


@h2d.impl
def _pageable(source: Any, target: Any) -> None:
    target.copy_(source)


@h2d.impl(beats=_OVER_PAGEABLE)
def _pinned(source: Any, target: Any) -> None:
    target.copy_(source, non_blocking=True)


@h2d.impl
def _zero_copy(ctx: Any, *, mib: int) -> Any:
    return stream.launch(ctx, op="copy", n=mib * 2**20 // 4, impl="cuda")
