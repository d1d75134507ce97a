"""Occupancy: threads in flight against a block's size, registers and shared memory."""

from typing import Any, NamedTuple

from perfsuite import Claim, Metric, Workload, case, cuda
from perfsuite.gpu import load, properties

N = 2**26


class Shape(NamedTuple):
    """How a kernel is launched: ``held`` blocks an SM has shared memory for, 0 for any number."""

    function: str = "scale_pairs"
    threads: int = 256
    values: int = 2
    held: int = 0
    least_blocks: int = 1


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
_NIGHTLY = ["block_32", "block_256", "shared_1", "wide_1", "rare_path", "rare_path_bounded"]


@case(
    smoke={"n": N - 3, "impl": "block_256"},
    nightly={"n": N, "impl": _NIGHTLY},
    full={"n": N, "impl": list(IMPLS)},
    needs=[cuda()],
    metrics=[Metric("occupancy", "%", better="equal")],
    tags=["occupancy", "latency"],
    source="occupancy: AI Systems Performance Engineering, chapters 6 and 8; "
    "te42kyfo/gpu-benches, gpu-stream",
)
def occupancy(ctx: Any, *, n: int, impl: str) -> Workload:
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
    shape, chip = IMPLS[impl], properties()
    macros = {"THREADS": shape.threads, "LEAST_BLOCKS": shape.least_blocks}
    kernel = load(ctx, __file__, shape.function, **macros)
    # Shared memory that leaves room for so many blocks and not for one more.
    shared = chip.shared_memory_per_multiprocessor // (shape.held + 1) if shape.held else 0
    blocks = -(-n // (shape.threads * shape.values))

    def exact() -> dict[str, float]:
        threads = kernel.active_blocks(shape.threads, shared) * shape.threads
        return {"occupancy": 100 * threads / chip.max_threads_per_multi_processor}

    return Workload(
        fn=lambda x, y: kernel(blocks, shape.threads, x, y, n, shared_bytes=shared),
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, y: x.double() + x.double(),
        tolerance=0.0,
        flops=0.0,
        exact=exact,
    )


OCCUPANCY_OVER_ONE_BLOCK = Claim(
    name="occupancy_over_one_block",
    case="occupancy",
    faster={"impl": "block_256"},
    than={"impl": "shared_1"},
    by=2.0,
    at={"n": (N,)},
    source="te42kyfo/gpu-benches, gpu-stream, H200, scale with 8 bytes a thread: 852 GB/s at "
    "12.5 % occupancy, 1395 at 25 %, 3165 at 100 %; two is asked for",
)
