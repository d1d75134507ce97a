"""Items of unequal length: split beforehand, taken from a queue, or left to the GPU's scheduler."""

from functools import cache
from typing import Any

from perfsuite import KERNELS, Beats, cuda, operator
from perfsuite.gpu import load, sm_count, torch
from perfsuite_scheduling import congruence

# Two blocks of 1024 threads fill a multiprocessor, however the items come to them.
THREADS = 1024
BLOCKS_PER_SM = 2
ITEMS = 4096
FUNCTIONS = {
    "static": "static_split",
    "blocks": "block_each",
    "queue": "atomic_queue",
    "sorted": "sorted_queue",
}
# The longest item takes 64 times the shortest, and 12 times the mean.
LEAST_ROUNDS = 32
MOST_ROUNDS = 2048


@cache
def rounds_of(lengths: str) -> tuple[int, ...]:
    """Return the rounds of each item; the three kinds of lengths add up to the same work.

    ``pareto``: lengths of which half of the items exceed twice the shortest, a quarter four times,
    and so on (a Pareto distribution of index 1, cut off), in a fixed shuffle; ``rising``: the same
    items, the longest last; ``equal``: the mean of those for each.
    """
    rising = [
        min(MOST_ROUNDS, int(LEAST_ROUNDS * ITEMS / (ITEMS - rank - 0.5))) for rank in range(ITEMS)
    ]
    if lengths == "equal":
        return (round(sum(rising) / ITEMS),) * ITEMS
    if lengths == "rising":
        return tuple(rising)
    order = sorted(range(ITEMS), key=congruence.keys(ITEMS).__getitem__)
    return tuple(rising[place] for place in order)


@operator(
    smoke={"lengths": "pareto", "impl": ["static", "blocks", "queue"]},
    nightly={"lengths": "equal", "impl": ["static", "queue"]},
    full={"lengths": ["equal", "pareto", "rising"]},
    needs=[cuda()],
    work=None,
    metrics=[KERNELS],
    cold=False,
    tags=["load_balance", "persistent"],
    source="atomic work queues: AI Systems Performance Engineering, chapters 6 and 7",
)
def work_queue(rng: Any, *, lengths: str) -> Any:
    """Work through 4096 items of 1024 values, each item so many dependent rounds of arithmetic.

    ``static`` gives each of two blocks a multiprocessor the same number of neighbouring items;
    ``queue`` has the same blocks take the next item from a counter when they are done with one;
    ``blocks`` starts a block for each item. ``sorted`` is the queue with the longest items first,
    so that no long one is begun last; torch sorts them in each launch, for lengths come with the
    items, and so their order is part of the time. With ``pareto`` lengths a few items take most of
    the time; with ``equal`` ones the queue has nothing to win and shows what it costs. A round is
    exact arithmetic on whole numbers modulo 2**32, so results are compared to the bit; no rate of
    such operations is known, so that no work is stated.
    """
    values, room = congruence.inputs(rng, ITEMS, THREADS)
    return torch.tensor(rounds_of(lengths), dtype=torch.int32, device=values.device), values, room


work_queue.reference(lambda rounds, x, y: congruence.advance(x, rounds[:, None]))


@work_queue.impl
def _static(ctx: Any, *, impl: str) -> Any:
    kernel = load(ctx, __file__, FUNCTIONS[impl], THREADS=THREADS, ITEMS=ITEMS)
    grid = ITEMS if impl == "blocks" else BLOCKS_PER_SM * sm_count()
    return lambda rounds, x, y: kernel(grid, THREADS, rounds, x, y)


work_queue.impl(
    _static,
    name="blocks",
    beats=Beats(
        "queue",
        1.05,
        "measured: 1.10 on an H100 and an H200. The hardware hands blocks out by itself",
        at={"lengths": "pareto"},
        name="hardware_queue",
    ),
)


@work_queue.impl(
    beats=Beats(
        "static",
        1.3,
        "AI Systems Performance Engineering, companion code, folder ch12: an atomic queue is 5.4 "
        "times as fast as a static split on a B200; how skewed work is decides that, so 1.3 is "
        "asked for",
        at={"lengths": ("pareto", "rising")},
    )
)
def _queue(ctx: Any, *, impl: str) -> Any:
    kernel = load(ctx, __file__, FUNCTIONS[impl], THREADS=THREADS, ITEMS=ITEMS)
    grid = BLOCKS_PER_SM * sm_count()
    # Zero once: the last block of each launch leaves the queue as the next one needs it.
    queue = torch.zeros(2, dtype=torch.int32, device=ctx.place)

    def launch(rounds: Any, x: Any, y: Any) -> None:
        order = [rounds.argsort(descending=True)] if impl == "sorted" else []
        kernel(grid, THREADS, rounds, x, y, queue, *order)

    return launch


work_queue.impl(_queue, name="sorted", tier="full")
