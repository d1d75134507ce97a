"""What a launch leaves behind on other streams is told from a device that is slow to answer."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from perfsuite.devices import cuda as joining


class SlowDevice:
    """Its own clock: a launch of ``work_us`` leaves ``left_us``; asking the device takes more."""

    def __init__(self, *, work_us: float, left_us: float, answer_us: Callable[[], float]) -> None:
        self.now_us = self.stream_us = self.device_us = 0.0
        self.work_us, self.left_us, self.answer_us = work_us, left_us, answer_us
        self.launches = 0

    def joins(self, agree: Callable[[float], float] = float) -> bool:
        return joining.joins_streams(
            self.launch,
            self.spin,
            wait_stream=self.wait_stream,
            wait_device=self.wait_device,
            agree=agree,
        )

    def launch(self) -> None:
        self.launches += 1
        self.spin(self.work_us)
        self.device_us += self.left_us

    def spin(self, wait_us: float) -> None:
        self.stream_us = self.device_us = max(self.now_us, self.device_us) + wait_us

    def wait_stream(self) -> None:
        self.now_us = max(self.now_us, self.stream_us)

    def wait_device(self) -> None:
        self.now_us = max(self.now_us, self.device_us) + self.answer_us()


def device(monkeypatch: pytest.MonkeyPatch, **how: object) -> SlowDevice:
    made = SlowDevice(**how)  # type: ignore[arg-type]
    monkeypatch.setattr("perfsuite.devices.cuda.time.perf_counter", lambda: made.now_us / 1e6)
    return made


def test_a_launch_that_leaves_nothing_is_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(monkeypatch, work_us=500.0, left_us=0.0, answer_us=lambda: 10.0)
    assert (made.joins(), made.launches) == (True, 1)


@pytest.mark.parametrize("answer_us", [10.0, 400.0])
def test_what_is_left_behind_is_seen_however_slow_the_device(
    answer_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = device(monkeypatch, work_us=500.0, left_us=100.0, answer_us=lambda: answer_us)
    assert (made.joins(), made.launches) == (False, joining.TRIES)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_behind_is_seen_among_late_answers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    made = device(
        monkeypatch,
        work_us=500.0,
        left_us=200.0,
        answer_us=lambda: 400.0 if rng.random() < 0.1 else 10.0,
    )
    assert not made.joins()


@pytest.mark.parametrize("work_us", [20.0, 7_400.0, 12_000.0])
@pytest.mark.parametrize("seed", range(10))
def test_a_slow_device_is_not_the_launch_s_doing(
    work_us: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_us = random.Random(seed).lognormvariate  # noqa: S311 - no secret
    made = device(monkeypatch, work_us=work_us, left_us=0.0, answer_us=lambda: late_us(7.0, 1.0))
    assert (made.joins(), made.launches > 1) == (True, True)


def test_ranks_launch_until_the_latest_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(monkeypatch, work_us=500.0, left_us=0.0, answer_us=lambda: 10.0)
    another_s = iter([1.0, 1.0, -1.0])
    assert (made.joins(lambda own: max(own, next(another_s))), made.launches) == (True, 3)


def test_one_rank_that_leaves_work_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(monkeypatch, work_us=500.0, left_us=0.0, answer_us=lambda: 10.0)
    assert not made.joins(lambda own: max(own, 1.0))
