"""Where a run's own wall time went: by phase, by variant, and what the device did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfsuite.model import Run

# The order of a run. Workers start while others measure, where the device is no CPU.
PHASES = {
    "open": "servers and devices",
    "start": "workers, beside others",
    "join": "ranks find each other",
    "build": "cases build, kernels compile",
    "check": "results against references",
    "calibrate": "launches per sample",
    "settle": "until steady",
    "energy": "joules per launch",
    "spin": "pacing",
    "measure": "samples",
    "recheck": "results after the last sample",
    "judge": "verdicts",
    "trace": "kernels of what moved or is new",
    "turns": "the baseline's code, where one card says little",
    "report": "history, packs' hooks, pages",
    "other": "waits for workers, what failed",
}
MOST_VARIANTS = 5
LEAST_S = 0.001


@dataclass(frozen=True, slots=True)
class Phase:
    """Wall seconds of one phase over all processes, and their share of all devices' time."""

    name: str
    meaning: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The cost of a run: ``devices`` were held for ``wall_s``.

    ``busy`` is the share of that time in which launches of samples ran, ``spin`` the share of
    pacing beside it; what ran in turns is another run's, and in neither. ``slowest`` names variants
    with their seconds, all stages together.
    """

    wall_s: float
    devices: int
    phases: tuple[Phase, ...]
    busy: float
    spin: float
    slowest: tuple[tuple[str, float], ...]


def profile_of(run: Run, *, report_s: float = 0.0) -> Profile:
    """Return the cost of a finished run; writing its report is known only to who did it."""
    results = (*run.results, *run.aside)
    processes = [process for result in results for process in result.evidence]
    devices = max(1, len({process.unit for process in processes}))
    spent = _sums(
        pair
        for phases_s in (*(process.phases_s for process in processes), _own(run, report_s))
        for pair in phases_s.items()
    )
    wall_s = run.wall_s + run.phases_s.get("open", 0.0) + report_s
    held_s = devices * wall_s or 1.0
    if spent:  # starts lie beside other work: what they hide of the rest is not known
        known_s = sum(spent.values()) - spent["start"]
        spent["other"] = max(0.0, devices * wall_s - known_s)
    names = [*PHASES, *sorted(spent.keys() - PHASES.keys())]
    variants = _sums((result.variant, result.wall_s) for result in results)
    slowest = sorted(variants.items(), key=lambda item: -item[1])
    return Profile(
        wall_s=wall_s,
        devices=devices,
        phases=tuple(
            Phase(name, PHASES.get(name, ""), spent[name], spent[name] / held_s)
            for name in names
            if spent[name] >= LEAST_S
        ),
        busy=sum(process.busy_s for process in processes) / held_s,
        spin=spent["spin"] / held_s,
        slowest=tuple(slowest[:MOST_VARIANTS]),
    )


def _sums(pairs: Iterable[tuple[str, float]]) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for name, seconds in pairs:
        found[name] += seconds
    return found


def _own(run: Run, report_s: float) -> Mapping[str, float]:
    return {**run.phases_s, **({"report": report_s} if report_s else {})}
