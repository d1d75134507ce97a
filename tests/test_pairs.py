"""Sides A and B by pairs: what is found, how often wrongly, and when no more pairs are needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from perfsuite.judge.compare import Shift, shift_of
from perfsuite.judge.noise import Timing
from perfsuite.judge.rule import LIMITS, Limits, Looks, looks_of, steps_left, within
from perfsuite.model import Policy, Settings, Verdict, Word

LOOKS = looks_of(Settings())
TRIALS = 300


Side = list[Timing]


def shift(a: Side, b: Side, limits: Limits = LIMITS["paced"], call: int = LOOKS.call) -> Shift:
    follows = 0.5 if limits is LIMITS["paced"] else None
    return shift_of(a, b, limits=limits, policy=Policy(), follows=follows, call=call)


def play(
    process: Callable[[], float], by: float, limits: Limits = LIMITS["paced"]
) -> tuple[Word, int, float]:
    """Take pairs as a run does: the word, how many pairs, and what a *same* may hide."""
    a: list[Timing] = []
    b: list[Timing] = []
    while True:
        for _ in range(LOOKS.step):
            for side, more in ((a, 0.0), (b, by)):
                time_us = 444.0 * (1 + more) * (1 + process())
                side.append(Timing("gpu", time_us, time_us * 1900))
        found = shift(a, b, limits)
        verdict = Verdict(variant="one", word=found.word, changes=(found.change,), in_turns=True)
        if not steps_left(verdict, len(a), LOOKS):
            return found.word, len(a), within(found.change)


def words(
    process: Callable[[], float], by: float, limits: Limits = LIMITS["paced"]
) -> tuple[Counter[Word], float, list[float]]:
    found = [play(process, by, limits) for _ in range(TRIALS)]
    pairs = sum(count for _, count, _ in found) / TRIALS
    return Counter(word for word, _, _ in found), pairs, sorted(x for *_, x in found)


def test_a_kernel_of_two_modes_is_called_by_none_of_them() -> None:
    chosen = random.Random(2)  # noqa: S311 - noise, not a secret

    def process() -> float:
        return chosen.gauss(0.0, 0.0005) - (0.018 if chosen.random() < 1 / 8 else 0.0)

    found, _, _ = words(process, 0.0)
    assert found[Word.SLOWER] + found[Word.FASTER] <= 0.01 * TRIALS
    assert words(process, 0.02)[0][Word.SLOWER] >= 0.95 * TRIALS


def test_what_is_unclear_gets_all_pairs_and_no_word_says_more_than_its_interval() -> None:
    chosen = random.Random(3)  # noqa: S311 - noise, not a secret

    def process() -> float:
        return chosen.gauss(0.0, 0.02)

    for _ in range(50):
        word, count, size = play(process, 0.0)
        assert word is not Word.SAME or size < LIMITS["paced"].gate
        assert word is not Word.UNCLEAR or count == LOOKS.most


@pytest.mark.parametrize(
    ("by", "scatter", "word"),
    [
        (0.0, 0.01, Word.SAME),  # two busy cores
        (0.15, 0.01, Word.SLOWER),
        (-0.15, 0.01, Word.FASTER),
        (0.1, 0.005, Word.SLOWER),  # a launch that a GPU's host awaits
    ],
)
def test_what_a_host_was_like_in_a_pair_s_seconds_is_no_change(
    by: float, scatter: float, word: Word
) -> None:
    chosen = random.Random(3)  # noqa: S311 - noise, not a secret

    def pair() -> Iterator[float]:
        level = chosen.uniform(1, 2)  # a neighbour takes up to half of a core
        while True:
            for _ in range(2):
                yield level * (1 + chosen.gauss(0, scatter)) - 1
            level = chosen.uniform(1, 2)

    found, pairs, _ = words(pair().__next__, by, LIMITS["host"])
    assert found[word] >= 0.98 * TRIALS
    assert by or not found[Word.SLOWER] + found[Word.FASTER]
    assert not by or not found[Word.SAME]
    assert pairs <= 7


def test_a_pair_that_lacks_the_change_is_not_trimmed() -> None:
    # us, as measured on two busy cores: the same code, and code whose pages were missing.
    one = (23053, 37473, 25847, 37328, 38600, 40138), (11708, 50068, 50034, 49314, 53101, 53384)
    other = (466, 407, 443, 415, 450, 419), (530, 2823, 3106, 3095, 2980, 3098)
    for sides in (one, other):
        a, b = ([Timing("cpu", us) for us in side] for side in sides)
        found = shift(a, b, LIMITS["host"])
        assert found.word is Word.UNCLEAR
        assert found.change.detectable > found.change.theta


def test_what_lies_beyond_the_threshold_is_not_the_same() -> None:
    steady = [Timing("gpu", 100.0 + 0.01 * n, 190_000.0 + 19 * n) for n in range(3)]
    moved = [Timing("gpu", 1.006 * one.time_us, 1.006 * (one.cycles or 0.0)) for one in steady]
    found = shift(steady, moved)
    assert found.change.low > found.change.threshold
    assert found.change.high < found.change.gate
    assert found.word is Word.UNCLEAR  # three pairs make no call


def test_one_process_far_away_hides_no_change() -> None:
    steady = [Timing("gpu", 100.0 + 0.02 * n, 190_000.0 + 38 * n) for n in range(6)]
    moved = [Timing("gpu", 1.008 * one.time_us, 1.008 * (one.cycles or 0.0)) for one in steady]
    found = shift([*steady[:5], Timing("gpu", 110.0, 209_000.0)], moved)
    assert (found.word, found.change.threshold) == (Word.SLOWER, 0.0025)


@pytest.mark.parametrize(
    ("confirm", "looks"), [(6, (3, 6, 12)), (4, (2, 4, 8)), (3, (2, 3, 6)), (1, (1, 1, 2))]
)
def test_settings_say_how_many_pairs(confirm: int, looks: tuple[int, int, int]) -> None:
    for screen in (1, 2, 9):
        assert looks_of(Settings(processes=screen, confirm_processes=confirm)) == Looks(*looks)
