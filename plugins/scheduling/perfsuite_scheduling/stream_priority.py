"""A short request beside a long kernel: what a stream's priority is worth."""

from typing import Any

from perfsuite import Metric, Regime, Scenario, case, cuda
from perfsuite.gpu import torch
from perfsuite_scheduling import congruence, streams

REQUESTS = 100
# Values of a request: one block. A round is a step of the sequence, as in `streams`.
SIZE = streams.THREADS
SHORT_ROUNDS = 64
LONG_ROUNDS = 1024
# Blocks of the busy kernel: eight times what a GPU of 132 multiprocessors holds at once.
BUSY_BLOCKS = 8 * 8 * 132
PRIORITIES = {"default": 0, "high": -1}


@case(
    smoke={"impl": [*PRIORITIES]},
    needs=(cuda(),),
    regime=Regime.END_TO_END,
    cold=False,
    metrics=[Metric("p50_us", "us"), Metric("p99_us", "us")],
    tags=["streams", "service", "latency"],
    source="stream priorities: CUDA C++ Programming Guide, 'Stream Priorities'; AI Systems "
    "Performance Engineering, chapter 11",
)
def stream_priority(ctx: Any, impl: str) -> Scenario:
    """Serve a hundred requests of one block each, every one beside a kernel that fills the GPU.

    The busy kernel has eight times the blocks that fit at once, on a stream of default priority; a
    request comes just after it, on a stream of its own. With ``default`` priority its block queues
    behind all those that still wait; with ``high`` it is the next to be given room, when a running
    block ends: nothing is interrupted. ``p50_us`` and ``p99_us`` are of the time from where the
    request stood first in its stream to its end (nearest ranks). The time of a play is mostly the
    busy kernels', so there is no claim on it. Results are compared to the bit.
    """
    busy, short = (streams.load_advance(ctx, rounds) for rounds in (LONG_ROUNDS, SHORT_ROUNDS))
    beside = torch.cuda.Stream(priority=PRIORITIES["default"])
    urgent = torch.cuda.Stream(priority=PRIORITIES[impl])
    load = torch.zeros(BUSY_BLOCKS * streams.THREADS, dtype=torch.int32, device=ctx.place)

    def serve(x: Any, y: Any) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(beside):
            busy(BUSY_BLOCKS, streams.THREADS, load, load)
        with torch.cuda.stream(urgent):
            begun.record()
            short(1, SIZE, x, y)
            ended.record()
        torch.cuda.synchronize()
        return 1e3 * float(begun.elapsed_time(ended))

    def play(seed: int) -> tuple[Any, dict[str, float]]:
        x = requests(seed, ctx.place)
        y = torch.zeros_like(x)
        torch.cuda.synchronize()
        waits = sorted(serve(*pair) for pair in zip(x, y, strict=True))
        return y, {"p50_us": rank(waits, 50), "p99_us": rank(waits, 99)}

    def reference(seed: int) -> Any:
        return congruence.advance(requests(seed, ctx.place), SHORT_ROUNDS)

    def wrong(seed: int) -> Any:
        # The last request is read before its stream was waited for.
        served = reference(seed)
        served[-1] = 0
        return served

    return Scenario(play=play, reference=reference, wrong=wrong)


def requests(seed: int, place: str) -> Any:
    """Return the values of all requests, the same from the same seed."""
    return congruence.draw(torch.Generator(device=place).manual_seed(seed), REQUESTS, SIZE)


def rank(ordered: list[float], percent: int) -> float:
    """Return the nearest rank of a percentile."""
    return ordered[-(-percent * len(ordered) // 100) - 1]
