"""Watches the machine: measures the packs' canaries on every unit at both ends of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from perfsuite.model import DeviceFacts, Pack, Regime, Result, Settings, Stage, Status, Variant
from perfsuite.plan import missing_need
from perfsuite.sites import Desk, measure_on_all

# What fewer variants say of the machine, their own verdicts say already.
FEWEST_TIMED = 3
# A CPU takes a second for each, and is compared within a gate that no count of them would halve.
PROCESSES = {"cpu": 1}
MOST_PROCESSES = 2


def canaries_for(
    variants: Iterable[Variant], packs: Iterable[Pack], facts: DeviceFacts, *, settings: Settings
) -> tuple[Variant, ...]:
    """Return the packs' canaries that this device can run; none for a run of a few variants."""
    timed = [v for v in variants if v.case.regime is not Regime.EXACT]
    runnable = sum(not missing_need(v, facts) for v in timed)
    if settings.check_only or runnable < FEWEST_TIMED:
        return ()
    found = [v for pack in packs for v in pack.canaries.get(facts.device, ())]
    return tuple(v for v in found if not missing_need(v, facts))


def watch(
    desks: Sequence[Desk],
    canaries: Sequence[Variant],
    stage: Stage,
    *,
    on_result: Callable[[Result], object],
    on_phase: Callable[[str, str], None],
) -> None:
    """Measure each canary on each unit, all units at once; hand over one result per canary."""
    found: dict[str, list[Result]] = {}
    lock = threading.Lock()

    def take(result: Result) -> None:
        with lock:
            found.setdefault(result.variant, []).append(result)

    def measure(desk: Desk, share: Sequence[Variant]) -> None:
        desk.panel.measure(
            share,
            stage,
            processes=PROCESSES.get(desk.facts.device, MOST_PROCESSES),
            on_result=take,
            on_phase=on_phase,
        )

    if canaries:
        measure_on_all(desks, canaries, measure)
    for results in found.values():
        on_result(joined(results))


def joined(results: Sequence[Result]) -> Result:
    """Return the units' results as one; a unit where it failed has no evidence in it."""
    good = [result for result in results if result.status is Status.OK]
    evidence = tuple(process for result in good for process in result.evidence)
    wall_s = max(result.wall_s for result in results)
    return replace((good or results)[0], evidence=evidence, wall_s=wall_s)
