"""Occupancy: threads in flight against a block's size, registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Claim, Metric, Work, Workload, cuda, package
from perfsuite_compute import multiprocessors

SOURCE = Path(__file__).with_name("occupancy.cu")
N = 2**26
ODD_N = N - 3


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is launched: ``held`` blocks an SM has shared memory for, 0 for any number."""

    function: str = "scale_pairs"
    threads: int = 256
    values: int = 2
    held: int = 0
    least_blocks: int = 1

    @property
    def options(self) -> tuple[str, ...]:
        """The macros of occupancy.cu."""
        return (f"-DTHREADS={self.threads}", f"-DLEAST_BLOCKS={self.least_blocks}")

    @property
    def shared_bytes(self) -> int:
        """Shared memory that leaves room for ``held`` blocks and not for one more."""
        return multiprocessors.shared_bytes() // (self.held + 1) if self.held else 0


IMPLS = {
    "block_32": Shape(threads=32),
    "block_256": Shape(),
    "block_1024": Shape(threads=1024),
    "shared_4": Shape(held=4),
    "shared_2": Shape(held=2),
    "shared_1": Shape(held=1),
    "wide_1": Shape("scale_wide", values=32, held=1),
    "rare_path": Shape("scale_or_median"),
    "rare_path_bounded": Shape("scale_or_median", least_blocks=8),
}
_NIGHTLY = [impl for impl in IMPLS if impl not in {"block_1024", "shared_4"}]


def _is_asked(n: int, impl: str) -> bool:
    return n == N or impl == "block_256"


def _work(n: int, impl: str) -> Work:
    return Work(read_bytes=4 * n, write_bytes=4 * n)


def _memory_bytes(n: int, impl: str) -> int:
    return 2 * 4 * n + 8 * n


@perfsuite.case(
    axes={"n": [N, ODD_N], "impl": _NIGHTLY},
    smoke={"n": [ODD_N], "impl": ["block_256"]},
    full={"impl": list(IMPLS)},
    only=_is_asked,
    full_only=[{"impl": ["shared_2"]}],
    needs=(package("torch"), cuda()),
    work=_work,
    memory_bytes=_memory_bytes,
    metrics=[Metric("occupancy", "%", better="equal")],
    tags=["occupancy", "latency"],
    source="occupancy: AI Systems Performance Engineering, chapters 6 and 8; "
    "te42kyfo/gpu-benches, gpu-stream",
)
def occupancy(ctx: Any, n: int, impl: str) -> Workload:
    """Double n floats, two a thread: too few bytes each to keep the memory busy with few threads.

    ``block_32`` leaves half an SM empty, since it holds 32 blocks of any size; ``block_256`` and
    ``block_1024`` fill it. ``shared_4``, ``shared_2`` and ``shared_1`` take shared memory for so
    many blocks of 256 an SM, as a kernel with large tiles does. ``wide_1`` has as few threads as
    ``shared_1`` but 128 bytes in flight for each: bytes are what counts, occupancy is one way to
    them: 89 % of the memory's ceiling on an H200, and 92 % of the rate of a copy.
    ``rare_path`` sorts 64 values in registers where an input is out of bounds, which never
    happens: registers are given by the longest path, to all threads. ``rare_path_bounded`` is the
    same with launch bounds that ask for 8 blocks an SM, so that the rare path spills instead.
    ``occupancy`` is what the driver says, of the threads an SM can hold.
    """
    shape = IMPLS[impl]
    kernel = ctx.load_cuda(SOURCE, shape.function, options=shape.options)
    shared = shape.shared_bytes
    blocks = -(-n // (shape.threads * shape.values))

    def exact() -> dict[str, float]:
        held = kernel.active_blocks(shape.threads, shared)
        return {"occupancy": 100 * held * shape.threads / multiprocessors.most_threads()}

    def wrong(x: Any, y: Any) -> None:
        # The number of blocks was rounded down: the last part of one is left as it was.
        y[:-2].copy_(2 * x[:-2])

    return Workload(
        fn=lambda x, y: kernel(blocks, shape.threads, x, y, n, shared_bytes=shared),
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, y: x.double() + x.double(),
        wrong=wrong,
        tolerance=0.0,
        exact=exact,
    )


CASES: tuple[perfsuite.Case | Claim, ...] = (
    occupancy,
    Claim(
        name="occupancy_over_one_block",
        case="occupancy",
        faster={"impl": "block_256"},
        than={"impl": "shared_1"},
        by=2.0,
        at={"n": (N,)},
        needs=(cuda(),),
        source="te42kyfo/gpu-benches, gpu-stream, H200, scale with 8 bytes a thread: 852 GB/s at "
        "12.5 % occupancy, 1395 at 25 %, 3165 at 100 %; two is asked for",
    ),
)
