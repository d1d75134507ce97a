"""The figures and the page of a proof."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, cycle, product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from msgspec.structs import replace
from scipy.stats import binomtest

from perfsuite.boundary import UsageError
from perfsuite.judge.compare import CLOCK_LIMIT
from perfsuite.judge.noise import entries_of
from perfsuite.judge.pairs import looks_of
from perfsuite.judge.verdict import judge, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    Block,
    Evidence,
    Expected,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    VariantRun,
    Verdict,
    Word,
    seconds_of,
)
from perfsuite.prove.raw import CUPTI, SAMPLED, Raw, Wave, ladders_of, read_raw
from perfsuite.run.project import Device, find_project, say
from perfsuite.stats import hodges_lehmann
from perfsuite.store.files import refusing, replace_file
from perfsuite.store.runs import load_run

T = TypeVar("T")
Waves = Mapping[tuple[str, str], list[Wave]]


class Comparison(NamedTuple):
    """One variant as the product judged it, against a baseline of the units ``before``.

    ``kernel`` names the variants that differ in ``change`` only, which is 0 where nothing changed.
    """

    kernel: str
    change: float
    is_structural: bool
    before: tuple[str, ...]
    unit: str
    verdict: Verdict

    @property
    def known(self) -> int:
        """Count the other units that the baseline came from; 0 is the same unit."""
        return 0 if self.before == (self.unit,) else len(self.before)


def result_of(variant: Variant, stage: Stage, waves: Sequence[Wave]) -> Result:
    """Return recorded waves as the result of a stage."""
    evidence = [
        Evidence(
            slot=0,
            seed=0,
            unit=wave.unit,
            blocks=tuple(
                Block(time_us=(time_us,), cycles=process.cycles[index : index + 1])
                for index, time_us in enumerate(process.time_us)
            ),
            **{name: getattr(wave, name) for name in SAMPLED},
        )
        for wave in waves
        for process in wave.processes
    ]
    found = Result(variant=variant.id, status=Status.OK, stage=stage, evidence=tuple(evidence))
    return replace(found, case_version=variant.case.version)


def run_of(raw: Raw, *variants: VariantRun) -> Run:
    """Return variants as a run of the proof's device has them."""
    header = raw.header
    return Run(
        id="proof",
        started="",
        command="",
        sku=header.sku,
        facts=header.facts,
        settings=header.settings,
        variants=variants,
    )


def entry_of(raw: Raw, variant: Variant, waves: Sequence[Wave]) -> BaselineEntry:
    """Return waves as the product would store them as a baseline, but for their sampling.

    A planted change is a variant of its own, which chose its own.
    """
    result = result_of(variant, Stage.SCREEN, waves)
    entries = entries_of(run_of(raw, VariantRun(variant=variant, results=(result,))))
    return replace(entries[variant.id], sampling=None)


def comparisons(raw: Raw, *, known: int) -> Iterator[Comparison]:
    """Yield all comparisons that a proof's processes allow, each wave in one of them only.

    ``known`` is how many other units a baseline has, a wave of each; 0 is one of the same unit.
    """
    waves: Waves = defaultdict(list)
    for wave in raw.waves:
        if not wave.fresh and len(wave.processes) == raw.header.settings.processes:
            waves[wave.variant, wave.unit].append(wave)
    units = raw.units
    pairs: list[tuple[tuple[str, ...], str]] = [((unit,), unit) for unit in units]
    if known:
        others = {unit: [each for each in units if each != unit] for unit in units}
        shifts = range(len(units) - 1 if len(units) > known else 0)
        pairs = [
            (tuple((2 * others[unit])[shift : shift + known]), unit)
            for shift in shifts
            for unit in units
        ]
    left = len(pairs)
    for before, unit in cycle(pairs):
        found = _round(raw, waves, before, unit)
        yield from found
        left = len(pairs) if found else left - 1
        if not left:
            return


def _round(raw: Raw, waves: Waves, before: tuple[str, ...], unit: str) -> list[Comparison]:
    """Judge one run of the product: all bases on a unit, and each change as one more of them.

    What is doubtful of the unchanged is confirmed together. A planted change takes its base's place
    in the run and shares its baseline. What an unseen unit leaves unclear of it is held against the
    unchanged code there, as in A against B.
    """
    needed = 1 + raw.header.confirming
    entries: dict[str, BaselineEntry] = {}
    here: dict[str, Sequence[Wave]] = {}
    cases = []
    for ladder in ladders_of(raw.variants.values()):
        home = waves[ladder.base.id, unit]
        there = [waves[ladder.base.id, each] for each in before]
        # Enough that a run can be judged against a baseline of one wave of each unit.
        if not all(there) or len(home) < needed + (unit in before):
            continue
        entry = entry_of(raw, ladder.base, [each.pop(0) for each in there])
        here[ladder.base.id] = home[1:needed]
        for change, variant in ladder.variants.items():
            if len(waves[variant.id, unit]) >= needed:
                entries[variant.id] = replace(entry, variant=variant.id)
                cases.append((ladder, change, variant))
    results = {
        (variant.id, stage): result_of(variant, stage, waves[variant.id, unit][chosen])
        for _, _, variant in cases
        for stage, chosen in ((Stage.SCREEN, slice(1)), (Stage.CONFIRM, slice(1, needed)))
    }
    bases = {ladder.base.id: ladder.base for ladder, change, _ in cases if not change}

    def judged(stage: Stage, chosen: Sequence[Variant], replaced: str = "") -> dict[str, Verdict]:
        # A run has the whole baseline at hand, of which a planted change replaces one variant.
        own = {each.id: each for each in chosen}
        ones = [
            VariantRun(
                variant=each,
                expected=Expected(entry=entries[name]),
                results=(results[name, stage],) if name in own else (),
            )
            for name, each in (bases | own).items()
            if name != replaced
        ]
        return {verdict.variant: verdict for verdict in judge(run_of(raw, *ones), stage)}

    screened = judged(Stage.SCREEN, list(bases.values()))
    doubtful = [each for name, each in bases.items() if wants_confirmation(screened[name])]
    final = screened | judged(Stage.CONFIRM, doubtful)
    found = []
    for ladder, change, variant in cases:
        name, base = variant.id, ladder.base
        if not change:
            verdict, used = final[name], variant in doubtful
        else:
            verdict = judged(Stage.SCREEN, [variant], base.id)[name]
            if used := wants_confirmation(verdict):
                family = [variant, *(each for each in doubtful if each is not base)]
                verdict = judged(Stage.CONFIRM, family, base.id)[name]
            if verdict.card:
                entry = replace(entry_of(raw, base, here[base.id]), variant=name)
                verdict = _decided(raw, results[name, Stage.CONFIRM], variant, entry) or verdict
        # Whether a wave is used depends on what was seen before it only.
        del waves[name, unit][: needed if used else 1]
        found.append(Comparison(ladder.name, change, ladder.is_structural, before, unit, verdict))
    return found


def _decided(raw: Raw, result: Result, variant: Variant, entry: BaselineEntry) -> Verdict | None:
    """Return what A against B says of a variant, None where it cannot tell.

    As a run does, by a few processes of each side, then by more until the answer is plain. A run
    takes fresh ones for these; here those of the confirmation serve again.
    """
    step, _, most = looks_of(raw.header.settings)
    for count in range(step, most + 1, step):
        one = VariantRun(
            variant=variant,
            expected=Expected(entry=entry, in_turns=True),
            results=(replace(result, evidence=result.evidence[:count]),),
        )
        (found,) = judge(run_of(raw, one))
        if not wants_confirmation(found) or count >= len(result.evidence):
            break
    return found if found.word.moved else None


def nights(runs: Sequence[Run]) -> Iterator[Comparison]:
    """Yield each run's variants against the newest earlier run of them, on each SKU.

    Twice, where there is one on the same unit and one on another. A run is judged by its screen,
    and by its confirmation where that has been measured; no process is on two sides.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    for place, run in enumerate(ordered):
        earlier = [each for each in ordered[:place] if each.sku.slug == run.sku.slug]
        for is_home in (True, False):
            before = [one for one in earlier if (one.facts.unit == run.facts.unit) is is_home]
            entries = {name: entry for one in before for name, entry in entries_of(one).items()}
            known = tuple(entries.values())
            variants = {one.id: one.variant for one in run.variants if one.id in entries}
            expected = [
                replace(one, expected=Expected(entry=entries[one.id]))
                for one in run.variants
                if one.id in entries
            ]
            held = replace(run, variants=tuple(expected), canaries=())
            found = judge(held, Stage.SCREEN, known=known)
            doubtful = {each.variant for each in found if wants_confirmation(each)}
            told = (r for r in held.results if r.stage is Stage.SCREEN or r.variant in doubtful)
            again = judge(held.having(results=told), Stage.CONFIRM, known=known)
            for name, verdict in {each.variant: each for each in (*found, *again)}.items():
                metrics = entries[name].metrics.values()
                units = sorted({unit for metric in metrics for unit in metric.values})
                kernel = f"{variants[name].pack} pack, whole runs"
                yield Comparison(kernel, 0.0, False, tuple(units), run.facts.unit, verdict)


# What comparisons come to.


class Share(NamedTuple):
    """``part`` of ``total`` with the exact 95 % bounds to either side (Clopper-Pearson)."""

    part: int
    total: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.part / self.total if self.total else math.nan

    def bounds(self) -> tuple[float, float]:
        """Return the least and the largest share that is not refuted, each at 95 %."""
        if not self.total:
            return 0.0, 1.0
        found = binomtest(self.part, self.total).proportion_ci(0.90, method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = (percent(bound, 1) for bound in self.bounds())
        return f"{self.part} of {self.total} ({low} to {high})" if self.total else DASH


class Tally:
    """The words on some comparisons; ``seen`` is the median change of the code."""

    def __init__(self, chosen: Sequence[Comparison]) -> None:
        seen = [each.verdict.changes[0].theta for each in chosen if each.verdict.changes]
        self.words = Counter(each.verdict.word for each in chosen)
        self.seen = median(seen) if seen else math.nan
        self.units = len({(each.before, each.unit) for each in chosen})
        # Slower or faster where nothing changed; slower where work was added; no word either way.
        self.wrong = Share(self.words[Word.SLOWER] + self.words[Word.FASTER], len(chosen))
        self.found = Share(self.words[Word.SLOWER], len(chosen))
        self.unclear = Share(self.words[Word.UNCLEAR], len(chosen))


def tallies(comparisons: Iterable[Comparison], key: Callable[[Comparison], T]) -> dict[T, Tally]:
    """Return a tally of each group of comparisons that have the same key."""
    groups: dict[T, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        groups[key(each)].append(each)
    return {name: Tally(group) for name, group in groups.items()}


def cost(raw: Raw) -> dict[str, Any]:
    """Return the median wall time of a variant in seconds, and what its GPU did: shares of it.

    ``busy`` is None where it was not polled; ``failed`` counts reasons.
    """
    warm = [wave.wall_s for wave in raw.waves if not wave.fresh and wave.processes]
    wall_s = sum(each.wall_s for each in raw.stretches) or math.nan
    polled = [each for each in raw.stretches if each.busy is not None]
    busy_s = sum((each.busy or 0.0) * each.wall_s for each in polled)
    return {
        "wall_s": median(warm or [math.nan]),
        "waves": len(warm),
        "busy": busy_s / sum(each.wall_s for each in polled) if polled else None,
        "timed": sum(each.timed_s for each in raw.stretches) / wall_s,
        "spin": sum(each.spin_s for each in raw.stretches) / wall_s,
        "failed": Counter(wave.reason for wave in raw.waves if wave.reason),
    }


def agreements(raw: Raw) -> list[tuple[str, float, float]]:
    """Return each kernel that CUPTI was asked about, its time per launch here and there.

    A graph's kernels follow each other without a gap: their starts and ends overlap (H200: kernels
    of 7 to 27 us take 0.1 to 0.4 us less than CUPTI says, those of 194 us as long).
    """
    ladders = ladders_of(raw.variants.values())
    names = {each.base.id: each.name for each in ladders if not each.is_structural}
    found = []
    for reading in raw.readings:
        times_us = [
            hodges_lehmann(process.time_us)
            for wave in raw.waves
            if (wave.variant, wave.unit) == (reading.variant, reading.unit) and not wave.fresh
            for process in wave.processes
        ]
        if reading.tool == CUPTI and reading.time_us and times_us and reading.variant in names:
            found.append((names[reading.variant], median(times_us), reading.time_us))
    return found


# Tools on the same kernels: what each would have called slower, at which false alarms.

OURS = "perfsuite"
SIDE = 3
# Kernels shorter than this are not held to what CUPTI says of them.
AGREEING_FROM_US = 20.0
# Comparisons drawn for each kernel and pair of units. Draws share processes: curves, no proof.
DRAWS = 60
# False-alarm rates of a curve, down to what the draws resolve.
RATES = np.geomspace(0.002, 1, 40).tolist()


class Tool(NamedTuple):
    """What a tool says of draws on one or on another unit, larger is slower.

    By kernel in ``said``: where nothing changed, and where work was added.
    """

    name: str
    is_cross: bool
    said: dict[str, tuple[list[float], list[float]]]

    def power_at(self, false: float) -> float:
        """Return the share of changes found where each kernel has these false alarms: their mean.

        Each kernel has its own threshold, fitted to the very draws: the best that any choice of
        thresholds could make of the tool.
        """
        found = [
            np.mean(np.array(planted) > np.quantile(null, 1 - false, method="higher"))
            for null, planted in self.said.values()
        ]
        return float(np.mean(found))


def tools_of(raw: Raw, *, draws: int = DRAWS) -> list[Tool]:
    """Return each tool on the same and on another unit, on the kernels that all tools have."""
    values: dict[str, dict[tuple[str, str], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for wave in raw.waves:
        if not wave.fresh:
            alone = [replace(wave, processes=(process,)) for process in wave.processes]
            values[OURS][wave.variant, wave.unit] += alone
    for reading in raw.readings:
        if reading.time_us and reading.tool != CUPTI:
            values[reading.tool][reading.variant, reading.unit].append(reading.time_us)
    found = []
    for is_cross in (False, True):
        said = {
            name: _drawn(raw, name, each, is_cross=is_cross, draws=draws)
            for name, each in values.items()
        }
        kernels = [set(each) for each in said.values() if each]
        common = set.intersection(*kernels) if kernels else set()
        for name, each in said.items():
            if each and common:
                chosen = {kernel: each[kernel] for kernel in sorted(common)}
                found.append(Tool(name, is_cross, chosen))
    return found


def _drawn(
    raw: Raw, name: str, values: Mapping[Any, Sequence[Any]], *, is_cross: bool, draws: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return what a tool says of draws of two sides that have no process in common.

    That is the log of the ratio of medians; ours is the change of the code, none where the clock
    moved too far.
    """
    rnd = random.Random(f"0 {name} {is_cross}")  # noqa: S311 - draws

    def said(base: Variant, variant: Variant, before: Sequence[Any], now: Sequence[Any]) -> float:
        if name != OURS:
            return math.log(median(now) / median(before))
        entry = replace(entry_of(raw, base, before), variant=variant.id)
        one = VariantRun(
            variant=variant,
            expected=Expected(entry=entry),
            results=(result_of(variant, Stage.SCREEN, now),),
        )
        (verdict,) = judge(run_of(raw, one))
        change = verdict.changes[0]
        return math.log1p(change.theta) if abs(change.clock_change) <= CLOCK_LIMIT else 0.0

    pairs = [pair for pair in product(raw.units, repeat=2) if (pair[0] != pair[1]) is is_cross]
    found = {}
    for ladder in ladders_of(raw.variants.values()):
        sides: tuple[list[float], list[float]] = ([], [])
        chosen = [] if ladder.is_structural else [ladder.base, ladder.compared]
        for (before, unit), (side, variant) in product(pairs, enumerate(chosen)):
            base = values.get((ladder.base.id, before), ())
            now = values.get((variant.id, unit), ())
            is_one = base is now
            if min(len(base), len(now)) < SIDE * (1 + is_one):
                continue
            for _ in range(draws):
                both = rnd.sample(base, SIDE * (1 + is_one))
                other = both[SIDE:] if is_one else rnd.sample(now, SIDE)
                sides[side].append(said(ladder.base, variant, both[:SIDE], other))
        if all(sides):
            found[ladder.name] = sides
    return found


# The page of the documentation, with ROC curves beside it: false alarms across, found upwards.

DASH = "\N{EN DASH}"


class Limits(NamedTuple):
    """What verdicts are held to: shares of comparisons, and how many show it.

    ``same`` and ``other``, of a baseline of the same unit and of others, are shares of work added
    and the share of comparisons that must find it.
    """

    false: float = 0.0
    compared: int = 3000
    unclear: float = 0.05
    same: tuple[tuple[float, float], ...] = ((0.005, 0.9), (0.01, 0.99))
    other: tuple[tuple[float, float], ...] = ((0.01, 0.9), (0.02, 0.99))


# A CPU drifts by 5 to 16 % between processes.
CPU_LIMITS = Limits(false=0.01, compared=300, unclear=0.2, same=((0.3, 0.9),), other=())


class Proof:
    """All figures of raw data and of whole ``runs`` of unchanged code; ``draws`` is for curves."""

    def __init__(self, raw: Raw, *, runs: Sequence[Run] = (), draws: int = DRAWS) -> None:
        self.raw = raw
        self.limits = CPU_LIMITS if raw.header.facts.is_host else Limits()
        most = len(raw.units) - 1
        # How a baseline is related to what is compared with it, by the other units it knows.
        self.relations = {0: "same unit", 1: "another unit"}
        self.relations |= {most: f"{most} other units"} if most > 1 else {}
        compared = chain.from_iterable(comparisons(raw, known=known) for known in self.relations)
        self.comparisons = (*compared, *nights(runs))
        self.unchanged: dict[str, Tally] = {}
        self.changes: dict[str, dict[float, Tally]] = {}
        self.kernels: dict[str, dict[tuple[str, float], Tally]] = {}
        for known, words in self.relations.items():
            own = [each for each in self.comparisons if each.known == known]
            shares = [each for each in own if each.change and not each.is_structural]
            self.unchanged[words] = Tally([each for each in own if not each.change])
            self.changes[words] = tallies(shares, lambda each: each.change)
            self.kernels[words] = tallies(own, lambda each: (each.kernel, each.change))
        self.structural = sorted({each.kernel for each in self.comparisons if each.is_structural})
        self.cost = cost(raw)
        # How far long kernels are from what CUPTI says of them.
        self.agreements, self.agreeing_from_us = agreements(raw), AGREEING_FROM_US
        long = [each for each in self.agreements if each[1] >= AGREEING_FROM_US]
        self.away = [abs(time_us / kernel_us - 1) for _, time_us, kernel_us in long]
        self.tools = tools_of(raw, draws=draws)
        # The median seconds of a process by tool, and why a tool never had a time to give.
        told = [each for each in raw.readings if each.time_us]
        own_s = [wave.busy_s for wave in raw.waves if wave.processes]
        seconds = {OURS: own_s} | {
            tool: [each.seconds for each in told if each.tool == tool]
            for tool in {each.tool for each in told}
        }
        self.seconds = {tool: median(each) for tool, each in seconds.items() if each}
        self.refusals = {
            each.tool: each.reason for each in raw.readings if each.tool not in seconds
        }


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return DASH if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


# The page is Markdown: nothing in it is HTML but what stands in the template.
TEMPLATES = Environment(
    loader=PackageLoader("perfsuite.prove"),
    autoescape=select_autoescape(["svg.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["percent"] = percent


def targets(proof: Proof) -> list[list[str]]:
    """Return what the engine is held to: the target's number and words, the figure, the outcome."""
    rows = TEMPLATES.get_template("targets.md.j2").render(proof=proof).splitlines()
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def write_page(proof: Proof, path: Path) -> list[Path]:
    """Write the page and its drawings beside it; return what was written."""
    drawings = {}
    for is_cross, words in ((False, "same unit"), (True, "another unit")):
        if tools := [tool for tool in proof.tools if tool.is_cross is is_cross]:
            drawings[words] = path.with_name(f"{path.stem}-roc-{words.replace(' ', '-')}.svg")
            drawn = TEMPLATES.get_template("roc.svg.j2").render(
                title=f"ROC, {words}", tools=tools, ours=OURS, log=math.log, rates=RATES
            )
            replace_file(drawings[words], drawn.encode())
    page = TEMPLATES.get_template("proof.md.j2").render(proof=proof, drawings=drawings)
    replace_file(path, page.encode())
    return [path, *drawings.values()]


# The command. Options with a metavar are named: typer 0.27.0 takes the metavar for the name.

Paths = list[Path] | None


def prove(  # noqa: PLR0913, PLR0917 - a command line
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="To measure for: 90s, 20m, 1h")
    ] = "20m",
    device: Device = "auto",
    raw: Annotated[
        Paths, typer.Option("--from", metavar="RAW", help="Measure nothing, use these; repeatable")
    ] = None,
    runs: Annotated[
        Paths,
        typer.Option(
            "--run", metavar="RUN", help="A run file of unchanged code, to count too; repeatable"
        ),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Where to keep what is measured")
    ] = None,
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="What to write")] = Path(
        "reports/proof.md"
    ),
) -> None:
    """Measure planted changes and none, beside other tools, and write a page about it."""
    whole = [load_run(path) for path in runs or []]
    if len({run.id for run in whole}) < len(whole):
        raise UsageError("the same run is named twice: it would be compared with itself")
    if not raw:
        from perfsuite.prove.collect import collect

        try:
            budget_s = seconds_of(time)
        except ValueError as error:
            raise UsageError(f"--time {error}", remedy="write 90s, 20m or 1h30m") from error
        project, name = find_project(), datetime.now(UTC).strftime("%Y%m%d-%H%M%S.jsonl")
        raw = [keep or project.folder / "proofs" / name]
        collect(raw[0], root=project.root, device=device, budget_s=budget_s, say=say)
        say(f"raw data: {raw[0]}")
    data = read_raw(raw)
    name = data.header.facts.name
    if others := {run.facts.name for run in whole} - {name}:
        raise UsageError(
            f"runs of {', '.join(sorted(others))} beside raw data of {name}",
            remedy="name runs of the device that the raw data is of",
        )
    proof = Proof(data, runs=whole)
    rows = targets(proof)
    for item, what, figure, outcome in rows:
        say(f"{item}. {what}: {figure} {outcome}")
    if all(outcome == "not measured" for *_, outcome in rows):
        say("next: too few processes to compare any; measure longer, with --time 20m or more")
    remedy = "what was measured is kept: perfsuite prove --from RAW --page FILE"
    with refusing("cannot write the page", page, remedy=remedy):
        for path in write_page(proof, page):
            say(f"wrote {path}")
