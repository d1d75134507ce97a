"""A worker that stands by is the next one, if it still lives."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator

import pytest
from test_panel import SITE, STEADY, measure, nasty

from perfsuite import wire
from perfsuite.model import Status
from perfsuite.panel import Panel
from perfsuite.panel.process import GRACE_S, resident_bytes
from perfsuite.panel.slot import Slot


@pytest.fixture
def slot() -> Iterator[Slot]:
    made = Slot(0, SITE)
    made.stand_by()
    yield made
    made.close()


def _standing(slot: Slot) -> int:
    worker = slot._standing
    assert worker is not None
    return worker.pid


def test_worker_that_stands_by_is_forked_once_and_taken_once(slot: Slot) -> None:
    pid = _standing(slot)
    slot.stand_by()
    first, second = slot.fork(), slot.fork()
    assert first.pid == pid
    assert second.pid != pid
    for worker in (first, second):
        worker.close()


def test_worker_that_is_taken_has_nothing_left_to_say_of_standing_by(slot: Slot) -> None:
    slot.await_standing(10.0)
    worker = slot.fork()
    begun = time.monotonic()
    worker.await_news(0.2)
    assert time.monotonic() - begun >= 0.2
    worker.close()


def test_a_slot_waits_for_the_worker_that_stands_by(slot: Slot) -> None:
    slot.fork().close()
    worker = slot._standing = slot.fork()  # it is told nothing, and says nothing
    begun = time.monotonic()
    slot.await_standing(0.2)
    assert time.monotonic() - begun >= 0.2
    worker.tell(wire.WarmUp("fake"))
    slot.await_standing(10.0)
    assert time.monotonic() - begun < 5.0


def test_worker_that_died_standing_by_is_replaced(slot: Slot) -> None:
    pid = _standing(slot)
    os.kill(pid, signal.SIGKILL)
    while resident_bytes(pid):
        pass
    worker = slot.fork()
    assert worker.is_fit
    assert worker.pid != pid
    worker.close()


def test_worker_of_a_dead_server_is_replaced(slot: Slot) -> None:
    pid = _standing(slot)
    os.kill(slot.hello(), signal.SIGKILL)
    while slot.is_alive:
        pass
    worker = slot.fork()
    assert worker.is_fit
    assert worker.pid != pid
    worker.close()


def test_closed_slot_leaves_no_worker_that_stands_by() -> None:
    slot = Slot(0, SITE)
    slot.stand_by()
    pidfd = os.pidfd_open(_standing(slot))
    slot.close()
    assert select.select([pidfd], [], [], 0)[0]
    os.close(pidfd)


def test_worker_that_hangs_standing_by_does_not_hold_up_the_end(slot: Slot) -> None:
    os.kill(_standing(slot), signal.SIGSTOP)
    begun = time.monotonic()
    slot.close()
    assert time.monotonic() - begun < GRACE_S


def test_variant_that_ends_what_stands_by_or_started_ahead_harms_no_other() -> None:
    first, *others = STEADY
    with Panel(SITE) as panel:
        results = measure(panel, first, nasty("end_siblings"), *others)
    assert [(result.status, result.reason) for result in results] == [(Status.OK, "")] * 4


def test_variants_are_measured_by_workers_that_stood_by(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    fork = Slot.fork

    def forking(slot: Slot) -> object:
        taken.append(slot._standing is not None)
        return fork(slot)

    monkeypatch.setattr(Slot, "fork", forking)
    with Panel(SITE) as panel:
        results = measure(panel, *STEADY)
    assert {result.status for result in results} == {Status.OK}
    # The device is described, the first two crews are forked anew: the third one stood by.
    assert taken == [False] * 7 + [True] * 3
