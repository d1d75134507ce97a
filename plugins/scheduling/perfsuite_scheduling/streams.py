"""Independent small kernels: one after another on one stream, or each on its own."""

from pathlib import Path
from typing import Any

from perfsuite import KERNELS, Beats, cuda, operator
from perfsuite.gpu import load, torch
from perfsuite_scheduling import congruence

SOURCE = Path(__file__).with_name("streams.cu")
# 16 blocks of 8 warps: an eighth of a GPU with 132 multiprocessors, and few warps on each of those.
BLOCKS = 16
THREADS = 256
ROUNDS = 4096
_N = BLOCKS * THREADS


def load_advance(ctx: Any, rounds: int, threads: int = THREADS) -> Any:
    """Return the kernel that takes so many rounds of each value."""
    return load(ctx, __file__, "advance", THREADS=threads, ROUNDS=rounds)


@operator(
    smoke={"kernels": 16},
    full={"kernels": [4, 8]},
    needs=[cuda()],
    work=None,
    metrics=[KERNELS],
    cold=False,
    tags=["streams", "overlap"],
    source="concurrent kernels on streams: AI Systems Performance Engineering, chapter 7",
)
def streams(rng: Any, *, kernels: int) -> Any:
    """Run ``kernels`` independent kernels of 16 blocks, 4096 dependent rounds a thread.

    ``one`` issues them on the measuring stream, where each waits for the one before it. ``many``
    gives each a stream of its own, that waits for an event of the measuring stream and is waited
    for by it. A round is exact arithmetic on whole numbers modulo 2**32, so results are compared to
    the bit; no rate of such operations is known, so that no work is stated.
    """
    return congruence.inputs(rng, kernels, _N)


streams.reference(lambda x, y: congruence.advance(x, ROUNDS))


@streams.impl
def _one(ctx: Any) -> Any:
    kernel = load_advance(ctx, ROUNDS)

    def run(x: Any, y: Any) -> None:
        for source, target in zip(x, y, strict=True):
            kernel(BLOCKS, THREADS, source, target)

    return run


@streams.impl(
    beats=Beats(
        "one",
        8.0,
        "AI Systems Performance Engineering, companion code, folder ch11: work spread over streams "
        "is 1.65 to 1.76 times as fast on a B200. Counted: 16 kernels of 16 blocks fit "
        "on the GPU together, a ratio of 16; half of that is asked for",
        {"kernels": 16},
        name="streams_overlap",
    )
)
def _many(ctx: Any, *, kernels: int) -> Any:
    kernel = load_advance(ctx, ROUNDS)
    beside = [torch.cuda.Stream() for _ in range(kernels)]

    def run(x: Any, y: Any) -> None:
        here = torch.cuda.current_stream()
        begun = here.record_event()
        for stream, source, target in zip(beside, x, y, strict=True):
            stream.wait_event(begun)
            with torch.cuda.stream(stream):
                kernel(BLOCKS, THREADS, source, target)
            here.wait_event(stream.record_event())

    return run
