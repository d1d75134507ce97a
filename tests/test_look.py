"""Quick looks: what is measured, and what the caller gets back."""

from __future__ import annotations

from perfsuite.look import MOST_LAUNCHES, Look, take_look


def test_a_look_returns_what_the_first_call_returned() -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        return len(calls)

    look, result = take_look("a test", call, time_limit_s=0.0)
    assert result == 1
    assert look.launches == 1
    assert len(calls) == 2


def test_a_look_ends_after_its_most_launches() -> None:
    look, _ = take_look("a test", lambda: None, time_limit_s=60.0)
    assert look.launches == MOST_LAUNCHES
    assert 0 <= look.low_us <= look.median_us <= look.high_us


def test_a_look_is_one_line() -> None:
    line = Look("a test", 3, 1.5, 1.25, 2.0).line()
    assert line.strip() == "1.50 us  (1.25 to 2.00, 3 launches)  a test"
