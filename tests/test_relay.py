"""What starts and leaves beside the processes at work, and when it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from test_panel import SITE, STEADY, measure, nasty

from perfsuite.model import Status, Variant
from perfsuite.workers.panel import Panel, Ranks, Wave
from perfsuite.workers.process import Site

FIRST, SECOND, THIRD = STEADY
TUNED = structs.replace(SECOND, case=structs.replace(SECOND.case, tunes=True))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which starts, checks and ends of waves will be added, by axis."""
    said: list[str] = []
    at_work: list[str] = []
    start, close, prepare, tell = Panel._start, Wave.close, Panel._prepare, Ranks.tell

    def starting(panel: Panel, wave: Wave) -> None:
        said.append(f"start {wave.variant.axes.get('n')}")
        start(panel, wave)

    def closing(wave: Wave) -> None:
        close(wave)
        said.append(f"close {wave.variant.axes.get('n')}")

    def preparing(panel: Panel, wave: Wave, following: Wave | None) -> None:
        at_work[:] = [str(wave.variant.axes.get("n"))]
        prepare(panel, wave, following)

    def telling(ranks: Ranks, step: str, *given: Any) -> None:
        said.append(f"{step} {at_work[0]}" if step in {"check", "measure"} else "")
        tell(ranks, step, *given)

    monkeypatch.setattr(Panel, "_start", starting)
    monkeypatch.setattr(Wave, "close", closing)
    monkeypatch.setattr(Panel, "_prepare", preparing)
    monkeypatch.setattr(Ranks, "tell", telling)
    return said


@pytest.mark.parametrize(
    "row",
    [
        # The next one starts beside a check, and the last one leaves beside the next one's.
        ([FIRST, SECOND], 3, False, ["start 200", "measure 100", "check 200", "close 100"]),
        # Launches that choose a kernel are timed.
        ([FIRST, TUNED], 3, False, ["start 200", "measure 100", "close 100", "check 200"]),
        # Where one has failed, the one before is gone when the next one checks.
        ([FIRST, nasty("raise"), THIRD], 3, False, ["close 100", "check 400"]),
        # Where the host is measured, nothing is hidden.
        ([FIRST, SECOND], 3, True, ["measure 100", "close 100", "start 200"]),
        # Two of these do not fit on the device.
        ([FIRST, SECOND], 1, False, ["start 200", "close 100", "check 200"]),
    ],
)
def test_what_starts_and_leaves_beside_a_check(
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    row: tuple[list[Variant], int, bool, list[str]],
) -> None:
    variants, slots, is_host, order = row
    monkeypatch.setattr(Site, "is_host_measured", is_host)
    with Panel(replace(SITE, slots=slots)) as panel:
        share = panel.facts().memory_bytes // 2 if slots == 1 else 0
        queue = [structs.replace(each, memory_bytes=share) for each in variants]
        results = measure(panel, *queue, processes=1)
    good = [each for each in results if each.status is Status.OK]
    assert len(good) == sum(each.pack == "steady" for each in variants)
    places = [said.index(each) for each in order]
    assert places == sorted(places)


def test_quads_that_fail_leave_nothing_running() -> None:
    with Panel(replace(SITE, slots=1)) as panel:
        (result,) = panel.quads(nasty("raise"), nasty("wrong"), processes=2)
        assert result.status is Status.ERROR
        assert (panel._ahead, panel._leaving, panel._wave) == (None, None, None)
