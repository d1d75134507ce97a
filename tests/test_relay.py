"""What starts and leaves beside the crew at work, and when it may not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from msgspec import structs
from store_data import variant
from test_panel import SITE, STEADY, measure, nasty

from perfsuite.model import Stage, Status
from perfsuite.workers.panel import Crew, Panel, Relay, Seat, Wave
from perfsuite.workers.process import Wait

ROOM = 100


@dataclass
class _Crew:
    wave: Wave
    said: list[str]
    is_stale: bool = False

    def hang_up(self) -> None:
        self.said.append(f"hang up {self.wave.memory_bytes}")

    def close(self) -> None:
        self.said.append(f"close {self.wave.memory_bytes}")

    def await_news(self, limit_s: float) -> None:
        assert limit_s > 0
        self.said.append(f"await {self.wave.memory_bytes}")


@dataclass
class _Stage:
    """A relay whose crews say what is done with them."""

    is_hidden: bool = True
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.relay = Relay(self.start, fits=lambda each: each <= ROOM, is_hidden=self.is_hidden)

    def start(self, wave: Wave) -> Crew:
        self.said.append(f"start {wave.memory_bytes}")
        return cast("Crew", _Crew(wave, self.said))


def _wave(memory_bytes: int) -> Wave:
    made = structs.replace(variant("copy", 4), memory_bytes=memory_bytes)
    return Wave(made, Stage.SCREEN, (Seat(0, 0),))


def test_next_crew_starts_and_the_last_one_leaves_beside_it() -> None:
    on = _Stage()
    first, second = _wave(30), _wave(40)
    crew = on.relay.take(first)
    on.relay.start_ahead(first, second)
    on.relay.await_ahead()
    on.relay.let_go(crew)
    assert on.said == ["start 30", "start 40", "await 40", "hang up 30"]
    on.relay.take(second)
    on.relay.see_out()
    assert on.said[4:] == ["close 30"]
    on.relay.see_out()
    assert on.said[5:] == []


def test_crew_is_seen_out_first_where_both_would_not_fit() -> None:
    on = _Stage()
    crew = on.relay.take(_wave(60))
    on.relay.start_ahead(_wave(60), _wave(70))
    on.relay.let_go(crew)
    assert on.said == ["start 60", "start 70", "hang up 60", "close 60"]


def test_nothing_starts_beside_a_crew_that_fills_the_device_or_the_host() -> None:
    full = _Stage()
    full.relay.start_ahead(_wave(101), _wave(1))
    full.relay.start_ahead(_wave(1), _wave(101))
    full.relay.start_ahead(_wave(1), None)
    host = _Stage(is_hidden=False)
    host.relay.start_ahead(_wave(1), _wave(1))
    host.relay.let_go(host.relay.take(_wave(2)))
    assert full.said == []
    assert host.said == ["start 2", "hang up 2", "close 2"]


def test_crew_of_another_wave_or_of_a_dead_server_is_not_taken() -> None:
    on = _Stage()
    on.relay.start_ahead(_wave(1), _wave(2))
    on.relay.take(_wave(3))
    on.relay.start_ahead(_wave(3), _wave(4))
    assert on.relay.ahead is not None
    cast("_Crew", on.relay.ahead).is_stale = True
    on.relay.take(on.relay.ahead.wave)
    assert on.said == ["start 2", "close 2", "start 3", "start 4", "close 4", "start 4"]
    assert not on.relay.drop_ahead()


def _said_of(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which checks and ends of the panel's crews will be added, by axes."""
    said: list[str] = []
    check, close = Crew.check, Crew.close

    def checking(crew: Crew, thorough: int, wait: Wait, *, is_alone: bool) -> None:
        said.append(f"check {crew.wave.variant.axes}")
        if is_alone and panel._relay.ahead:
            assert all(worker._connection.has_news(0) for worker in panel._relay.ahead.workers)
        check(crew, thorough, wait, is_alone=is_alone)

    def closing(crew: Crew) -> None:
        close(crew)
        said.append(f"close {crew.wave.variant.axes}")

    monkeypatch.setattr(Crew, "check", checking)
    monkeypatch.setattr(Crew, "close", closing)
    return said


def test_crew_before_one_that_failed_is_gone_when_the_next_one_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _, last = STEADY
    with Panel(SITE) as panel:
        said = _said_of(panel, monkeypatch)
        measure(panel, first, nasty("raise"), last)
    assert said.index(f"close {first.axes}") < said.index(f"check {last.axes}")


def test_nothing_starts_or_leaves_beside_a_check_that_times_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, last = STEADY
    tuned = structs.replace(second, case=structs.replace(second.case, tunes=True))
    with Panel(SITE) as panel:
        said = _said_of(panel, monkeypatch)
        assert [each.status for each in measure(panel, first, tuned, last)] == [Status.OK] * 3
    assert said.index(f"close {first.axes}") < said.index(f"check {tuned.axes}")


def test_one_slot_s_memory_is_counted_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with Panel(replace(SITE, slots=1)) as panel:
        said = _said_of(panel, monkeypatch)
        large = [
            structs.replace(each, memory_bytes=panel.facts().memory_bytes // 2) for each in STEADY
        ]
        measure(panel, *large, processes=1)
    assert said.index(f"close {large[0].axes}") < said.index(f"check {large[1].axes}")


def test_quads_that_fail_leave_no_crew_behind() -> None:
    with Panel(replace(SITE, slots=1)) as panel:
        (result,) = panel.quads(nasty("raise"), nasty("wrong"), processes=2)
        assert result.status is Status.ERROR
        assert panel._relay.ahead is None
