"""Transfers between host and device: from pageable and page-locked memory, and by a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_memory import stream

BLOG = "Harris, How to Optimize Data Transfers in CUDA C/C++, NVIDIA Technical Blog, 2012"
PLACES = {"pageable": "host", "pinned": "pinned", "zero_copy": "pinned"}


def _work(*, mib: int, direction: str, impl: str) -> perfsuite.Work:
    # Each byte crosses the link once.
    del impl
    size = mib * 2**20
    if direction == "h2d":
        return perfsuite.Work(read_bytes=size, link="pcie")
    return perfsuite.Work(write_bytes=size, link="pcie")


def _memory_bytes(*, mib: int, direction: str, impl: str) -> int:
    del direction, impl
    return mib * 2**20


@perfsuite.case(
    axes={"mib": [16, 256], "direction": ["h2d", "d2h"], "impl": list(PLACES)},
    smoke={"mib": [16], "direction": ["h2d"]},
    full={"mib": [1, 64, 1024]},
    full_only=[
        {"mib": [256], "impl": ["pageable"]},
        {"direction": ["d2h"], "impl": ["pageable"]},
        {"impl": ["zero_copy"]},
    ],
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    regime=perfsuite.Regime.END_TO_END,
    ceilings={"pcie": lambda mib, impl, **_: (mib, impl) == (256, "pinned")},
    source=f"{BLOG}; CUDA C++ Best Practices Guide, Zero Copy",
)
def h2d(ctx: Any, *, mib: int, direction: str, impl: str) -> perfsuite.Workload:
    """Copy a buffer over the link and wait for it; pageable memory goes through a staging copy.

    zero_copy has no copy engine: stream's copy kernel reads page-locked memory over the link, or
    writes it, at the host's own address, which is valid on the GPU.
    """
    n = mib * 2**20 // 4
    is_pinned = PLACES[impl] == "pinned"
    places = (PLACES[impl], "device") if direction == "h2d" else ("device", PLACES[impl])

    def wrong(source: Any, target: Any) -> None:
        # The last chunk of a chunked transfer is forgotten.
        target[: n - 1024].copy_(source[: n - 1024])

    return perfsuite.Workload(
        fn=stream.stream.launch(ctx, op="copy", n=n, impl="cuda")
        if impl == "zero_copy"
        else lambda source, target: target.copy_(source, non_blocking=is_pinned),
        make_inputs=lambda rng: (rng.randn(n, place=places[0]), rng.empty(n, place=places[1])),
        reference=_by_other_path(is_pinned=is_pinned),
        wrong=wrong,
        tolerance=0.0,
        # A copy from pageable memory cannot be captured.
        captures=False,
    )


CLAIMS = (
    perfsuite.Claim(
        name="pinned_2x",
        case="h2d",
        faster={"impl": "pinned"},
        than={"impl": "pageable"},
        by=2.0,
        source=f"{BLOG}: more than twice as fast (2.3 to 5.8 GB/s in, 2.3 to 6.0 GB/s out)",
        at={"mib": (16, 64, 256)},
        needs=(perfsuite.cuda(),),
    ),
)


def _by_other_path(*, is_pinned: bool) -> Callable[..., Any]:
    """Return a reference that takes the path the variant does not take, by chunks."""
    import torch

    def reference(source: Any, target: Any) -> Any:
        parts = []
        for part in source.split(2**22):
            if source.is_cuda:
                landing = torch.empty(part.shape, dtype=part.dtype, pin_memory=not is_pinned)
                parts.append(landing.copy_(part))
            else:
                staged = part.clone() if is_pinned else part.pin_memory()
                parts.append(staged.to(target.device))
        return torch.cat(parts)

    return reference
