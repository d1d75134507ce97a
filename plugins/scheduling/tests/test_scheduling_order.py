"""The barrier and the queue, simulated: blocks in any order, launch after launch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
import pytest
from perfsuite_scheduling import congruence, work_queue

Block = Generator[None, None, None]
WRAP = 2**32


def _run(blocks: list[Block], rng: np.random.Generator) -> None:
    """Let blocks take turns at random until all have ended; a deadlock is a failure."""
    turns = 0
    while blocks:
        chosen = blocks[rng.integers(len(blocks))]
        if next(chosen, "ended") == "ended":
            blocks.remove(chosen)
        turns += 1
        assert turns < 200_000, "no block gets on"


@dataclass
class Ring:
    """`steps` of smoothing.cu, one value a block; whole numbers, so that sums are exact."""

    size: int
    arrivals: int = 0
    reads: list[int] = field(default_factory=list)
    buffers: list[list[int]] = field(default_factory=list)

    def block(self, me: int, count: int, *, waits: bool) -> Block:
        """Take the steps, a yield wherever another block may come between."""
        source = self.reads
        for left in reversed(range(count)):
            target = self.buffers[left % 2]
            total = 0
            for place in (me - 1, me, (me + 1) % self.size):
                total += source[place]
                yield
            target[me] = total
            source = target
            if left and waits:
                yield from self.meet()

    def meet(self) -> Block:
        """Wait as the kernel does."""
        before, self.arrivals = self.arrivals, (self.arrivals + 1) % WRAP
        full = (before // self.size + 1) * self.size % WRAP
        while (self.arrivals - full) % WRAP >= WRAP // 2:  # a negative int in the kernel
            yield


def _sums(values: list[int], count: int) -> list[int]:
    for _ in range(count):
        size = len(values)
        values = [sum(values[(i + k) % size] for k in (-1, 0, 1)) for i in range(size)]
    return values


def _launches(seed: int, *, waits: bool) -> bool:
    """Run launch after launch, the counter about to wrap; say whether every result was right."""
    rng = np.random.default_rng(seed)
    ring = Ring(8, arrivals=WRAP - 3 * 8)
    right = True
    for count in (1, 2, 5, 6):
        ring.reads = rng.integers(100, size=ring.size).tolist()
        ring.buffers = [[-1] * ring.size for _ in range(2)]
        _run([ring.block(me, count, waits=waits) for me in range(ring.size)], rng)
        right &= ring.buffers[0] == _sums(ring.reads, count)
    return right


@pytest.mark.parametrize("seed", range(5))
def test_barrier_keeps_steps_apart_over_launches_and_a_wrapped_counter(seed: int) -> None:
    assert _launches(seed, waits=True)


def test_steps_without_the_barrier_go_wrong() -> None:
    assert not _launches(0, waits=False)


@dataclass
class Queue:
    """`atomic_queue` of work_queue.cu, a yield wherever another block may come between."""

    next: int = 0
    finished: int = 0

    def block(self, items: int, grid: int, done: list[int]) -> Block:
        """Take items until there are none."""
        while True:
            item, self.next = self.next, self.next + 1
            yield
            if item >= items:
                break
            done[item] += 1
            yield
        before, self.finished = self.finished, self.finished + 1
        if before == grid - 1:
            yield
            self.next = 0
            yield
            self.finished = 0


@pytest.mark.parametrize(("items", "grid"), [(50, 8), (3, 8), (8, 8), (1, 1)])
def test_queue_gives_each_item_once_and_is_ready_for_the_next_launch(items: int, grid: int) -> None:
    rng = np.random.default_rng(1)
    queue = Queue()
    for _ in range(5):
        done = [0] * items
        _run([queue.block(items, grid, done) for _ in range(grid)], rng)
        assert done == [1] * items
        assert (queue.next, queue.finished) == (0, 0)


def _static(rounds: tuple[int, ...], workers: int) -> int:
    share = -(-len(rounds) // workers)
    return max(sum(rounds[i : i + share]) for i in range(0, len(rounds), share))


def _queued(rounds: tuple[int, ...], workers: int) -> int:
    busy = [0] * workers
    for length in rounds:
        heapq.heapreplace(busy, busy[0] + length)
    return max(busy)


@pytest.mark.parametrize("lengths", ["pareto", "rising"])
@pytest.mark.parametrize("workers", [132, 264, 296])
def test_lengths_leave_the_queue_enough_to_win(lengths: str, workers: int) -> None:
    rounds = work_queue.rounds_of(lengths)
    assert _static(rounds, workers) > 1.4 * _queued(rounds, workers)


@pytest.mark.parametrize("lengths", ["pareto", "rising"])
def test_longest_first_the_queue_is_as_fast_as_with_equal_items(lengths: str) -> None:
    rounds = work_queue.rounds_of(lengths)
    longest_first = _queued(tuple(sorted(rounds, reverse=True)), 264)
    assert longest_first < 1.02 * sum(rounds) / 264 < 0.9 * _queued(rounds, 264)


@pytest.mark.parametrize("schedule", [_static, _queued])
def test_equal_lengths_leave_the_queue_nothing_to_win(
    schedule: Callable[[tuple[int, ...], int], int],
) -> None:
    rounds = work_queue.rounds_of("equal")
    assert schedule(rounds, 256) == 16 * rounds[0]


def test_lengths_are_the_same_work_in_every_order() -> None:
    pareto, rising, equal = (work_queue.rounds_of(x) for x in ("pareto", "rising", "equal"))
    assert sorted(pareto) == list(rising)
    assert pareto != rising
    assert abs(sum(equal) / sum(rising) - 1) < 0.01
    assert (min(rising), max(rising)) == (work_queue.LEAST_ROUNDS, work_queue.MOST_ROUNDS)


def test_closed_form_is_what_the_rounds_give() -> None:
    torch = pytest.importorskip("torch")
    start = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
    rounds = torch.tensor([0, 1, 2, 3, 100, 4097])
    wanted = []
    for value, count in zip(start.tolist(), rounds.tolist(), strict=True):
        now = value
        for _ in range(count):
            now = (congruence.MULTIPLIER * now + congruence.INCREMENT) % WRAP
        wanted.append((now + WRAP // 2) % WRAP - WRAP // 2)
    assert congruence.advance(start, rounds).tolist() == wanted
    assert congruence.advance(start[:1], 4097).dtype == torch.int32
