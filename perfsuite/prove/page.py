"""Renders raw data as a page of the documentation, with its drawings beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

from jinja2 import Environment, PackageLoader, StrictUndefined

from perfsuite.files import replace_file
from perfsuite.model import Run
from perfsuite.prove.comparisons import Comparing, Comparison
from perfsuite.prove.figures import (
    AGREEING_FROM_US,
    Agreement,
    Cost,
    Share,
    Spread,
    Tally,
    agreements,
    by_change,
    by_subject,
    cost,
    spreads,
    tally,
)
from perfsuite.prove.nights import nights
from perfsuite.prove.raw import Raw
from perfsuite.prove.roc import draw
from perfsuite.prove.tools import DRAWS, OURS, Tool, tools_of

MET, MISSED, SHORT, NONE = "met", "**missed**", "not shown", "not measured"
DASH = "\N{EN DASH}"
WALL_S, BUSY, AGREEING = 1.5, 0.7, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What verdicts are held to: shares of comparisons, and how many show it.

    ``same`` and ``other``, of a baseline of the same unit and of others, are shares of work added
    and the share of comparisons that must find it.
    """

    false: float = 0.0
    compared: int = 3000
    unclear: float = 0.05
    same: tuple[tuple[float, float], ...] = ((0.005, 0.9), (0.01, 0.99))
    other: tuple[tuple[float, float], ...] = ((0.01, 0.9), (0.02, 0.99))


GPU_LIMITS = Limits()
# A CPU drifts by 5 to 16 % between processes.
CPU_LIMITS = Limits(false=0.01, compared=300, unclear=0.2, same=((0.3, 0.9),), other=())


@dataclass(frozen=True, slots=True)
class Target:
    """What the engine is held to, what was found, and whether that is enough."""

    item: str
    what: str
    figure: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Proof:
    """All figures of a page."""

    raw: Raw
    comparisons: tuple[Comparison, ...]
    cost: Cost
    agreements: tuple[Agreement, ...]
    spreads: tuple[Spread, ...]
    tools: tuple[Tool, ...]

    @property
    def relations(self) -> dict[int, str]:
        """How a baseline is related to what is compared with it, by the units it knows."""
        return relations_of(self.raw)

    def of(self, known: int) -> list[Comparison]:
        """Return the comparisons with a baseline of so many other units."""
        return [each for each in self.comparisons if each.known == known]

    def unchanged(self, known: int) -> Tally:
        """Return the words where nothing changed."""
        return tally(each for each in self.of(known) if not each.change)

    def targets(self) -> list[Target]:
        """Return what the engine is held to, in the order it is asked for."""
        is_cpu = self.raw.header.facts.device == "cpu"
        limits = CPU_LIMITS if is_cpu else GPU_LIMITS
        verdicts = [
            _false_alarms(words, self.unchanged(known), limits)
            for known, words in self.relations.items()
        ]
        for known, words in self.relations.items():
            found = by_change(self.of(known))
            for change, least in limits.other if known else limits.same:
                verdicts.append(_power(words, change, least, found.get(change)))
        if is_cpu:
            return verdicts
        return [*verdicts, *_costs(self.cost), _agreement(self.agreements)]


def relations_of(raw: Raw) -> dict[int, str]:
    """Return the relations that the units of raw data allow: the most of them is all others."""
    most = len(raw.units) - 1
    many = {most: f"{most} other units"} if most > 1 else {}
    return {0: "same unit", 1: "another unit", **many}


def prove(raw: Raw, *, runs: Sequence[Run] = (), draws: int = DRAWS) -> Proof:
    """Return the figures of raw data, and of whole ``runs`` of unchanged code.

    ``draws`` is for the curves of tools only.
    """
    compared = chain.from_iterable(Comparing(raw, known=known) for known in relations_of(raw))
    return Proof(
        raw,
        (*compared, *nights(runs)),
        cost(raw),
        tuple(agreements(raw)),
        tuple(spreads(raw)),
        tuple(tools_of(raw, draws=draws)),
    )


def write_page(proof: Proof, path: Path) -> list[Path]:
    """Write the page and its drawings beside it; return what was written."""
    drawings = {}
    for is_cross, words in ((False, "same unit"), (True, "another unit")):
        tools = [tool for tool in proof.tools if tool.is_cross is is_cross]
        if tools:
            drawings[words] = path.with_name(f"{path.stem}-roc-{words.replace(' ', '-')}.svg")
            replace_file(drawings[words], draw(tools, f"ROC, {words}").encode())
    page = _rendered(proof, {words: each.name for words, each in drawings.items()})
    replace_file(path, page.encode())
    return [path, *drawings.values()]


def _rendered(proof: Proof, drawings: dict[str, str]) -> str:
    # The page is Markdown: nothing in it is HTML but what stands in the template.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("perfsuite.prove"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "share": share}
    subjects = {words: by_subject(proof.of(known)) for known, words in proof.relations.items()}
    return environment.get_template("proof.md.j2").render(
        proof=proof,
        header=proof.raw.header,
        relations=proof.relations.items(),
        changes={words: by_change(proof.of(known)) for known, words in proof.relations.items()},
        subjects=subjects,
        rows=sorted({key for each in subjects.values() for key in each}),
        drawings=drawings,
        refusals=_refusals(proof.raw),
        seconds=_seconds(proof.raw),
        processes=sum(len(wave.processes) for wave in proof.raw.waves),
        agreeing_from=AGREEING_FROM_US,
    )


def _refusals(raw: Raw) -> dict[str, str]:
    """Return why a tool had no time to give, by tool, where it never had one."""
    told = {reading.tool for reading in raw.readings if reading.time_us}
    return {each.tool: each.reason for each in raw.readings if each.tool not in told}


def _seconds(raw: Raw) -> dict[str, float]:
    """Return the median seconds that a process of each tool measured for."""
    found: dict[str, list[float]] = {OURS: [wave.busy_s for wave in raw.waves if wave.processes]}
    for reading in raw.readings:
        if reading.time_us:
            found.setdefault(reading.tool, []).append(reading.seconds)
    return {tool: median(each) for tool, each in found.items() if each}


def percent(value: float, digits: int = 2) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return DASH if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def share(found: Share) -> str:
    """Return a share with its count and exact bounds."""
    if not found.total:
        return DASH
    low, high = found.bounds()
    return f"{found.count} of {found.total} ({percent(low, 1)} to {percent(high, 1)})"


def _false_alarms(relation: str, same: Tally, limits: Limits) -> Target:
    most = percent(limits.false, 0) if limits.false else "none"
    what = f"unchanged, {relation}: {most} slower or faster in {limits.compared} comparisons, "
    what += f"at most {percent(limits.unclear, 0)} unclear"
    if not same.wrong.total:
        return Target("1", what, "", NONE)
    high = same.wrong.bounds()[1]
    figure = f"{same.wrong.count} of {same.wrong.total} (below {percent(high)}), "
    figure += f"unclear {percent(same.unclear.value, 1)}"
    is_met = same.wrong.value <= limits.false and same.unclear.value <= limits.unclear
    is_enough = same.wrong.total >= limits.compared
    return Target("1", what, figure, MISSED if not is_met else MET if is_enough else SHORT)


def _power(relation: str, change: float, least: float, found: Tally | None) -> Target:
    what = f"{percent(change, 1)} more work found, {relation}: at least {percent(least, 0)}"
    if found is None:
        return Target("2", what, "", NONE)
    return Target("2", what, share(found.found), _met(found.found.value >= least))


def _met(is_met: bool) -> str:  # noqa: FBT001 - the one thing it says
    return MET if is_met else MISSED


def _costs(found: Cost) -> list[Target]:
    wall = f"median wall time of a variant on a warm panel: at most {WALL_S:g} s"
    busy = f"GPU not idle: at least {percent(BUSY, 0)} of the wall time"
    targets = [Target("3", wall, "", NONE), Target("3", busy, "", NONE)]
    if found.waves:
        targets[0] = Target("3", wall, f"{found.wall_s:.2f} s", _met(found.wall_s <= WALL_S))
    if found.busy is not None:
        figure = f"{percent(found.busy, 0)}; in samples {percent(found.timed, 0)}, "
        figure += f"in the spin about {percent(found.spin, 0)}"
        targets[1] = Target("3", busy, figure, _met(found.busy >= BUSY))
    return targets


def _agreement(found: Sequence[Agreement]) -> Target:
    what = f"samples within {percent(AGREEING, 0)} of CUPTI's kernel, "
    what += f"from {AGREEING_FROM_US:g} us"
    judged = [abs(each.difference) for each in found if each.is_judged]
    if not judged:
        return Target("5", what, "", NONE)
    within = sum(each <= AGREEING for each in judged)
    figure = f"{within} of {len(judged)}, worst {percent(max(judged))}"
    return Target("5", what, figure, _met(within == len(judged)))
