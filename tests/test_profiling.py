"""Where a run's own time went, from made-up phases of known sums."""

from __future__ import annotations

import pytest
import report_data as data
import test_engine
from msgspec.structs import replace

from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Group, Sample
from perfsuite.model import Evidence, Result, Run
from perfsuite.report.data import read
from perfsuite.report.html import render_render
from perfsuite.report.terminal import costs
from perfsuite.report.view import profile_of


def process(unit: str, **phases_s: float) -> Evidence:
    return Evidence(slot=0, seed=0, unit=unit, phases_s=phases_s, busy_s=2.0)


def run_of(*units: str) -> Run:
    """Return a run of 10 s whose processes take 1 s to start and 4 to measure, 3 of it spun."""
    run = data.run_of()
    results: list[Result] = [
        replace(run.results[index], evidence=(process(unit, start=1.0, measure=1.0, spin=3.0),))
        for index, unit in enumerate(units)
    ]
    timed = [replace(result, wall_s=5.0 + index) for index, result in enumerate(results)]
    own = {"open": 2.0, "judge": 0.5}
    return replace(run, results=tuple(timed), wall_s=7.0, phases_s=own)


def test_phases_are_summed_in_the_order_of_a_run() -> None:
    profile = profile_of(run_of("a", "a"), report_s=1.0)
    assert [(phase.name, phase.seconds) for phase in profile.phases] == [
        ("open", 2.0), ("start", 2.0), ("spin", 6.0), ("measure", 2.0), ("judge", 0.5),
        ("report", 1.0),
    ]  # fmt: skip
    assert profile.wall_s == 10.0
    assert profile.phases[2].share == pytest.approx(0.6)


def test_shares_are_of_the_time_of_all_devices() -> None:
    one, two = (profile_of(run_of(*units), report_s=1.0) for units in (("a", "a"), ("a", "b")))
    assert (one.devices, two.devices) == (1, 2)
    assert [one.busy, two.busy] == pytest.approx([0.4, 0.2])
    assert [one.spin, two.spin] == pytest.approx([0.6, 0.3])


def test_what_no_process_tells_of_is_named_other() -> None:
    run = replace(run_of("a"), wall_s=20.0)
    other = profile_of(run).phases[-1]
    assert (other.name, other.seconds) == ("other", 22.0 - 2.0 - 4.0 - 0.5)


def test_the_slowest_variants_come_first() -> None:
    run = run_of("a", "a", "a")
    assert [seconds for _, seconds in profile_of(run).slowest] == [7.0, 6.0, 5.0]


def test_an_empty_run_costs_nothing() -> None:
    profile = profile_of(replace(data.run_of(), results=(), wall_s=0.0))
    assert (profile.phases, profile.busy, profile.slowest) == ((), 0.0, ())


def test_the_table_is_plain_text() -> None:
    lines = list(costs(run_of("a", "a"), 1.0))
    assert lines[0] == "profile: 10 s on 1 device"
    assert "  spin             6.00 s      60 %  pacing" in lines
    assert "  device busy with samples 40 % of the time, pacing them 60 %" in lines
    assert all(line.isascii() for line in lines)


def test_the_report_has_the_same_table() -> None:
    page = render_render(read(run_of("a", "a"), baselines={}))
    assert "Where the run's own time went" in page
    assert "Where the run's own time went" not in render_render(read(data.run_of(), baselines={}))


class Pacing(FakeDevice):
    """Says that it spun for an hour before each call's samples."""

    def sample(self, group: Group, count: int, **conditions: object) -> list[Sample]:
        self.spun_s += 3600.0
        return super().sample(group, count, **conditions)  # type: ignore[arg-type]


def test_pacing_is_told_apart_from_sampling() -> None:
    session = test_engine.prepared(test_engine.copying(10.0), Pacing(seed=1))
    before_s = session.finish().phases_s["spin"]
    session.block()
    evidence = session.finish()
    assert evidence.phases_s["spin"] - before_s == pytest.approx(3600.0)
    assert evidence.phases_s["measure"] == 0.0
    assert evidence.busy_s > 0
