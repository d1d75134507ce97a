"""The lengths of the queue's items, and the closed form of their work."""

import heapq
from collections.abc import Callable

import pytest
from perfsuite_scheduling import congruence, work_queue

WRAP = 2**32


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
