"""A loop whose end depends on its data: the host asks, or a graph decides by itself."""

import ctypes
from collections.abc import Callable
from typing import Any

from perfsuite import Claim, Regime, Workload, case, cuda
from perfsuite.gpu import load, torch
from perfsuite_scheduling import counting, driver_graph

THREADS = 256
N = 2**16
# Neighbours in Fibonacci's sequence take Euclid's algorithm longest: 44 steps of 31-bit numbers.
# One such pair among the random ones makes every launch as long as the next.
LONGEST = (1836311903, 1134903170)
STEPS = 44
# How often the host asks: at every step, or after so many.
EVERY = {"host_each": 1, "host_eighth": 8}


@case(
    smoke={"impl": [*EVERY, "while_node"]},
    needs=(cuda(),),
    metrics=[counting.READS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["graph", "synchronisation"],
    source="conditional nodes of CUDA graphs: AI Systems Performance Engineering, chapter 12; "
    "CUDA C++ Programming Guide, 'Conditional Graph Nodes' (CUDA 12.4)",
)
def graph_conditional(ctx: Any, impl: str) -> Workload:
    """Find the greatest common divisors of 65,536 pairs, a step of Euclid's algorithm a kernel.

    How many steps that takes only the data know. ``host_each`` reads a flag after every step, and
    the GPU waits meanwhile; ``host_eighth`` asks after eight steps, of which up to seven are for
    nothing; ``while_node`` is a graph whose loop ends when a kernel says so: the host starts it
    once. A graph reads fixed addresses: all get their data in the same tensors, and leave the
    result in one of them.
    """
    a, b, left, right = (torch.empty(N, dtype=torch.int32, device=ctx.place) for _ in range(4))
    more = torch.zeros(1, dtype=torch.int32, device=ctx.place)
    kernel = load(ctx, __file__, "euclid_step", THREADS=THREADS)

    def step(from_a: Any, from_b: Any) -> None:
        kernel(-(-N // THREADS), THREADS, from_a, from_b, left, right, more, N)

    def steps() -> None:
        step(left, right)

    if impl in EVERY:
        run = _asking(lambda: step(a, b), steps, more, every=EVERY[impl])
    else:
        run = _graph(ctx, lambda: step(a, b), steps, more).replay

    def launch(a: Any, b: Any) -> Any:
        run()
        return left

    return Workload(
        fn=launch,
        make_inputs=lambda rng: tuple(map(_filled, (a, b), LONGEST, (rng, rng))),
        reference=torch.gcd,
        wrong=_without_last_step,
        exact=lambda *_: counting.reads(run),
    )


def _filled(tensor: Any, first: int, rng: Any) -> Any:
    tensor.copy_(rng.randint(0, 2**31 - 1, N))
    tensor[0] = first
    return tensor


def _asking(
    first: Callable[[], None], step: Callable[[], None], more: Any, *, every: int
) -> Callable[[], None]:
    def run() -> None:
        first()
        is_left = True
        while is_left:
            for _ in range(every - 1):
                step()
            more.zero_()
            step()
            is_left = bool(more.item())

    return run


def _graph(
    ctx: Any, first: Callable[[], None], step: Callable[[], None], more: Any
) -> driver_graph.Graph:
    decide = load(ctx, __file__, "decide", THREADS=THREADS)

    def fill(body: driver_graph.Body, condition: int) -> None:
        body.add(step)
        body.add(lambda: decide(1, 1, more, ctypes.c_uint64(condition)))

    graph = driver_graph.Graph()
    graph.add(first)
    graph.add_while(fill)
    graph.instantiate()
    return graph


def _without_last_step(a: Any, b: Any) -> Any:
    """End the loop on the flag of the step before: the longest pair lacks its last one."""
    left, right = a.clone(), b.clone()
    for _ in range(STEPS - 1):
        rest = torch.where(right == 0, 0, left % right.clamp(min=1))
        left, right = torch.where(right == 0, left, right), rest
    return left


LOOP_IN_GRAPH = Claim(
    name="loop_in_graph",
    case="graph_conditional",
    faster={"impl": "while_node"},
    than={"impl": "host_eighth"},
    by=2.0,
    source="AI Systems Performance Engineering, companion code, folder ch12: a conditional "
    "node is 2.95 times as fast as a branch on the host on a B200; 2 is asked for, of a host "
    "that looks at each eighth step",
)
