"""The trials, the figures and the page of a proof."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import typer
from msgspec.structs import replace
from scipy.stats import binomtest

from perfsuite.boundary import UsageError
from perfsuite.judge.rule import needs_pairs, within
from perfsuite.judge.verdict import judge
from perfsuite.model import (
    CLOCKS,
    BaselineEntry,
    Expected,
    Stage,
    Variant,
    VariantRun,
    Verdict,
    Word,
    seconds_of,
)
from perfsuite.prove.collect import (
    Ladder,
    Raw,
    Wave,
    collect,
    entry_of,
    ladders_of,
    read_raw,
    result_of,
    run_of,
    verdict_of_pairs,
)
from perfsuite.report.files import templates
from perfsuite.run.project import Device, find_project, say
from perfsuite.stats import grouped
from perfsuite.store.files import refusing, replace_file

T = TypeVar("T")
# A kernel is quiet on a card where so many processes, which no trial has, agree to this.
AGREE, QUIET_PROCESSES, QUIET = 0.002, 6, "quiet"
# What is called the same should be so within this.
NEAR = 0.005
# How many other cards a baseline may know.
OTHERS = (1, 2, 3)
PAIRS, HOME, AWAY = "pairs alone", "this card known", "other cards known"


class Trial(NamedTuple):
    """One variant, judged by processes that no other trial of its change and kind has.

    ``before`` are the cards that the baseline knows, none where pairs alone are taken. ``triage``
    is what stored numbers say, and ``verdict`` what becomes of it: None where pairs were needed
    and none was at hand.
    """

    ladder: Ladder
    change: float
    unit: str
    before: tuple[str, ...]
    is_quiet: bool
    triage: Verdict | None
    verdict: Verdict | None

    @property
    def decides(self) -> str:
        """What a verdict is found by, as a target has it."""
        return PAIRS if not self.before else HOME if self.unit in self.before else AWAY

    @property
    def relation(self) -> str:
        """The same with how many other cards are known."""
        many, is_away = len(self.before), self.decides == AWAY
        return f"{many} other card{'s' * (many > 1)} known" if is_away else self.decides

    @property
    def kind(self) -> str:
        """Which table it is in."""
        if self.ladder.is_host_timed:
            return "timed by the host"
        return QUIET if self.is_quiet else "not quiet"


class Deck:
    """The waves that no trial has had yet, by variant and card, and which bases are quiet there."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.ladders = ladders_of(raw.variants.values())
        self.alone: dict[tuple[str, str], deque[Wave]] = defaultdict(deque)
        # Pairs, by what they decide besides: those of unchanged code are in one trial of all.
        self.pairs: dict[tuple[str, str, str], deque[Wave]] = defaultdict(deque)
        bases = {ladder.base.id for ladder in self.ladders}
        for wave in raw.waves:
            if wave.beside:
                kinds = [""] if wave.variant in bases else [PAIRS, HOME, AWAY]
                for kind in kinds:
                    self.pairs[wave.variant, wave.unit, kind].append(wave)
            elif wave.processes:
                self.alone[wave.variant, wave.unit].append(wave)
        self.quiet = {
            (ladder.name, unit): self._is_quiet(ladder.base, unit)
            for ladder, unit in product(self.ladders, raw.units)
            if not ladder.is_host_timed and self.has(ladder.base, unit, QUIET_PROCESSES)
        }

    def has(self, variant: Variant, unit: str, processes: int) -> bool:
        """Say whether so many processes of a variant are left on a card."""
        return sum(len(wave.processes) for wave in self.alone[variant.id, unit]) >= processes

    def taken(self, variant: Variant, unit: str, processes: int) -> list[Wave]:
        """Take waves of so many processes at least, which must be there."""
        waves = list[Wave]()
        while sum(len(wave.processes) for wave in waves) < processes:
            waves.append(self.alone[variant.id, unit].popleft())
        return waves

    def _is_quiet(self, base: Variant, unit: str) -> bool:
        """Say whether a base's processes agree, by the steadier of their clocks."""
        waves = self.taken(base, unit, QUIET_PROCESSES)
        metrics = entry_of(self.raw.header, base, waves).metrics
        return min(metrics[name].between for name in CLOCKS if name in metrics) <= AGREE


def trials(deck: Deck) -> Iterator[Trial]:
    """Yield all trials that a proof's processes allow: of nights, then of pairs alone.

    A night has baselines of the card itself, or of other cards.
    """
    units = deck.raw.units
    known = [0, *(many for many in OTHERS if many < len(units))]
    for turn in count():
        found: list[Trial] = []
        for many, unit in product(known, units):
            others = [each for each in units if each != unit]
            before = [others[(turn + shift) % len(others)] for shift in range(many)]
            found += _night(deck, tuple(before) or (unit,), unit)
        yield from found
        if not found:
            break
    for ladder, unit in product(deck.ladders, units):
        for change, variant in ladder.variants.items():
            for wave in deck.pairs[variant.id, unit, PAIRS if change else ""]:
                verdict = verdict_of_pairs(deck.raw.header, variant, wave)
                is_quiet = deck.quiet.get((ladder.name, unit), False)
                yield Trial(ladder, change, unit, (), is_quiet, None, verdict)


def _night(deck: Deck, before: tuple[str, ...], unit: str) -> Iterator[Trial]:
    """Judge one run on a card: each base, and each change by the baseline of its base.

    Whether a wave is used depends on what was seen before it only. So a trial begins with pairs
    at hand, or is none but for its triage.
    """
    header, cases, ones = deck.raw.header, [], []
    stored = header.settings.processes  # of a card a baseline has at least a screen's
    for ladder in deck.ladders:
        base, need = ladder.base, Counter(dict.fromkeys(before, stored)) + Counter([unit])
        if not all(deck.has(base, each, processes) for each, processes in need.items()):
            continue
        entry = entry_of(
            header, base, [w for each in before for w in deck.taken(base, each, stored)]
        )
        for change, variant in ladder.variants.items():
            if waves := deck.alone[variant.id, unit]:
                own = replace(entry, variant=variant.id)
                screen = result_of(variant, waves.popleft())
                expected = Expected(entry=own)
                ones.append(VariantRun(variant=variant, expected=expected, results=(screen,)))
                cases.append((ladder, change, own))
    found = {each.variant: each for each in judge(run_of(header, *ones), Stage.SCREEN)}
    for (ladder, change, entry), one in zip(cases, ones, strict=True):
        is_quiet = deck.quiet.get((ladder.name, unit), False)
        trial = Trial(ladder, change, unit, before, is_quiet, found[one.id], None)
        pairs = deck.pairs[one.id, unit, trial.decides if change else ""]
        verdict = _confirmed(deck.raw, one.variant, entry, trial, pairs) if pairs else None
        yield trial._replace(verdict=verdict)


def _confirmed(
    raw: Raw, variant: Variant, entry: BaselineEntry, trial: Trial, pairs: deque[Wave]
) -> Verdict | None:
    """Return what becomes of a triage, by pairs where it asks for them."""
    if trial.triage is None or not needs_pairs(trial.triage):
        return trial.triage
    wave = pairs.popleft()
    verdict = verdict_of_pairs(raw.header, variant, wave)
    if verdict is None or not verdict.word.stayed or trial.decides != HOME:
        return verdict
    # The code is the same. Whether its environment is, side B and the card's own level tell.
    result, expected = result_of(variant, wave), Expected(entry=entry)
    one = VariantRun(variant=variant, expected=expected, results=(result,))
    (mine,) = judge(run_of(raw.header, one), Stage.SCREEN)
    return replace(verdict, word=Word.ENVIRONMENT) if mine.word.moved else verdict


# What trials come to.


class Share(NamedTuple):
    """``part`` of ``total`` with the exact 95 % bounds to either side (Clopper-Pearson)."""

    part: int
    total: int

    def bounds(self) -> tuple[float, float]:
        """Return the least and the largest share that is not refuted, each at 95 %."""
        if not self.total:
            return 0.0, 1.0
        found = binomtest(self.part, self.total).proportion_ci(0.90, method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = (percent(bound) for bound in self.bounds())
        return f"{self.part} of {self.total} ({low} to {high})" if self.total else "none"


# Unchanged code that is said to have moved, or its environment; what is called the same.
WRONG, SAME = (Word.SLOWER, Word.FASTER, Word.ENVIRONMENT), (Word.SAME, Word.SAME_CODE)


class Tally:
    """What some verdicts come to; ``within`` is how large changes may be that are the same."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        chosen = list(verdicts)
        self.words = Counter(each.word for each in chosen)
        self.asks = Share(sum(map(needs_pairs, chosen)), len(chosen))
        self.seen = median([e.changes[0].theta for e in chosen if e.changes] or [math.nan])
        same = [each.changes[0] for each in chosen if each.word.stayed and each.changes]
        self.within = list(map(within, same))

    def share(self, *words: Word) -> Share:
        """Return how often one of these words was said."""
        return Share(sum(self.words[word] for word in words), self.words.total())

    @property
    def near(self) -> Share:
        """How many of the changes called the same are within half a percent."""
        return Share(sum(each <= NEAR for each in self.within), len(self.within))

    def quantile(self, share: float) -> float:
        """Return what so many of the changes called the same are within."""
        return float(np.quantile(self.within, share))


def tallies(verdicts: Iterable[tuple[T, Verdict | None]]) -> dict[T, Tally]:
    """Return a tally of the verdicts that have the same key; what has none counts nowhere."""
    groups = grouped(((key, verdict) for key, verdict in verdicts if verdict), lambda one: one[0])
    return {key: Tally(verdict for _, verdict in group) for key, group in groups.items()}


class Target(NamedTuple):
    """What is asked for: a share of at least, or at most, so much."""

    words: str
    share: Share
    limit: float
    is_most: bool = False

    @property
    def outcome(self) -> str:
        """Whether the bounds lie on the right side, on the wrong one, or on both."""
        low, high = self.share.bounds()
        if self.is_most:
            low, high = 1 - high, 1 - low
        limit = 1 - self.limit if self.is_most else self.limit
        return "met" if low >= limit else "**missed**" if high < limit else "not shown"


# The least share of planted changes that is found, by what decides and the work added.
POWER = {
    (PAIRS, 0.005): 0.9,
    (PAIRS, 0.01): 0.99,
    (HOME, 0.005): 0.9,
    (HOME, 0.01): 0.99,
    (AWAY, 0.005): 0.8,
    (AWAY, 0.01): 0.97,
}


class Proof:
    """All figures of the raw data of one version of the code; ``draws`` is for other tools."""

    def __init__(self, raw: Raw, *, draws: int = 60) -> None:
        self.raw, deck = raw, Deck(raw)
        self.quiet = Share(sum(deck.quiet.values()), len(deck.quiet))
        self.trials = list(trials(deck))
        keyed = [((e.kind, e.change, e.relation), e) for e in self.trials]
        self.groups = tallies((key, each.verdict) for key, each in keyed)
        self.triage = tallies((key, each.triage) for key, each in keyed)
        self.kernels = tallies(
            ((each.ladder.name, each.change, each.decides), each.verdict) for each in self.trials
        )
        self.targets = self._targets()
        self.pairs = sum(len(wave.beside) for wave in raw.waves)
        self.failed = Counter(wave.reason for wave in raw.waves if wave.reason)
        self.tools = tools_of(raw, draws)
        # The seconds of each process by tool, and why a tool never had a time to give.
        alone = [wave for wave in raw.waves if wave.processes and not wave.beside]
        self.wall_s = median([wave.wall_s for wave in alone] or [math.nan])
        self.seconds = {OURS: [wave.busy_s for wave in alone]}
        for each in raw.readings:
            self.seconds.setdefault(each.tool, []).extend([each.seconds] if each.time_us else [])
        self.refusals = {e.tool: e.reason for e in raw.readings if not self.seconds[e.tool]}

    def _targets(self) -> list[Target]:
        quiet = [each for each in self.trials if each.kind == QUIET]
        same = Tally(each.verdict for each in quiet if each.verdict and not each.change)
        found = tallies(((each.decides, each.change), each.verdict) for each in quiet)
        wrong, unclear = same.share(*WRONG), same.share(Word.UNCLEAR)
        return [
            Target("kernels are quiet: at least 70 %", self.quiet, 0.7),
            Target(
                "unchanged code is called slower, faster or environment: at most 0.1 %",
                wrong,
                0.001,
                is_most=True,
            ),
            Target("unchanged code is left unclear: at most 2 %", unclear, 0.02, is_most=True),
            *(
                Target(
                    f"+{percent(change)}, {decides}: is found in at least {percent(least)}",
                    found.get((decides, change), Tally()).share(Word.SLOWER),
                    least,
                )
                for (decides, change), least in POWER.items()
            ),
        ]

    @property
    def is_met(self) -> bool:
        """Say whether all is shown that is asked for."""
        return all(target.outcome == "met" for target in self.targets)

    @property
    def repeated(self) -> int:
        """Count the cards that were measured on more than one day."""
        days = {(u, night.header.started[:10]) for night in self.raw.nights for u in night.units}
        return sum(many > 1 for many in Counter(unit for unit, _ in days).values())


# Tools on the same kernels: what each would have called slower, at which false alarms.

OURS, SIDE, FALSE = "perfsuite", 3, 0.01


def tools_of(raw: Raw, draws: int) -> dict[str, float]:
    """Return by tool the share of changes found on one card at 1 % of false alarms.

    That is the mean of the kernels that all tools have. Draws share processes, and each kernel has
    its own threshold, fitted to the very draws: a picture, no proof.
    """
    values: dict[str, dict[tuple[str, str], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for wave in raw.waves:
        if not wave.beside:
            alone = [replace(wave, processes=(process,)) for process in wave.processes]
            values[OURS][wave.variant, wave.unit] += alone
    for reading in raw.readings:
        if reading.time_us:
            values[reading.tool][reading.variant, reading.unit].append(reading.time_us)
    said = {name: dict(_drawn(raw, name, each, draws)) for name, each in values.items()}
    told = {name: each for name, each in said.items() if each}
    common = set.intersection(*map(set, told.values())) if told else set[str]()
    return {name: fmean(each[k] for k in common) for name, each in told.items() if common}


def _drawn(
    raw: Raw, name: str, values: Mapping[tuple[str, str], Sequence[Any]], draws: int
) -> Iterator[tuple[str, float]]:
    """Yield the share of changes that a tool finds, by kernel, from sides that share no process.

    A tool says the log of the ratio of medians; ours is the change of the code.
    """
    rnd = random.Random(name)  # noqa: S311 - draws

    def said(base: Variant, variant: Variant, before: Sequence[Any], now: Sequence[Any]) -> float:
        if name != OURS:
            return math.log(median(now) / median(before))
        entry = replace(entry_of(raw.header, base, before), variant=variant.id)
        processes = tuple(process for wave in now for process in wave.processes)
        result = result_of(variant, replace(now[0], processes=processes))
        one = VariantRun(variant=variant, expected=Expected(entry=entry), results=(result,))
        (verdict,) = judge(run_of(raw.header, one))
        return math.log1p(verdict.changes[0].theta) if verdict.changes else 0.0

    for ladder in ladders_of(raw.variants.values()):
        null, planted = list[float](), list[float]()
        for unit in raw.units:
            base = values.get((ladder.base.id, unit), ())
            now = values.get((ladder.compared.id, unit), ())
            if len(base) < 2 * SIDE or len(now) < SIDE:
                continue
            for _ in range(draws):
                both = rnd.sample(base, 2 * SIDE)
                null.append(said(ladder.base, ladder.base, both[:SIDE], both[SIDE:]))
                other = rnd.sample(now, SIDE)
                planted.append(said(ladder.base, ladder.compared, both[:SIDE], other))
        if null:
            limit = np.quantile(null, 1 - FALSE, method="higher")
            yield ladder.name, float(np.mean(np.array(planted) > limit))


# The page of the documentation.


def percent(value: float, digits: int | None = None) -> str:
    """Return a share of 1 in percent, by two digits that count; a dash for none."""
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{100 * value:.{digits}f} %" if digits is not None else f"{100 * value:.3g} %"


def write_page(proofs: Sequence[Proof], path: Path) -> None:
    """Write the page: the newest version of the code first, each by itself."""
    # The page is Markdown: nothing in it is HTML but what stands in the template.
    found = templates(str, "perfsuite.prove")
    found.filters["percent"] = percent
    page = found.get_template("proof.md.j2").render(proofs=proofs[::-1])
    replace_file(path, page.encode())


# The command. Options with a metavar are named: typer 0.27.0 takes the metavar for the name.


def prove(
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="To measure for: 90s, 20m, 1h")
    ] = "20m",
    device: Device = "auto",
    raw: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RAW", help="Measure nothing, use these; repeatable"),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Where to keep what is measured")
    ] = None,
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="What to write")] = Path(
        "reports/proof.md"
    ),
) -> None:
    """Measure planted changes and none, beside other tools; fail unless all targets are met.

    What was measured is pooled with what its folder holds. A folder may be named, too.
    """
    if not raw:
        try:
            budget_s = seconds_of(time)
        except ValueError as error:
            raise UsageError(f"--time {error}", remedy="write 90s, 20m or 1h30m") from error
        project, name = find_project(), datetime.now(UTC).strftime("%Y%m%d-%H%M%S.jsonl")
        kept = keep or project.folder / "proofs" / name
        collect(kept, root=project.root, device=device, budget_s=budget_s, say=say)
        say(f"raw data: {kept}")
        raw = [keep or kept.parent]
    proofs = [Proof(data) for data in read_raw(raw)]
    if not proofs:
        raise UsageError("no raw data there", where=", ".join(map(str, raw)))
    for target in proofs[-1].targets:
        say(f"{target.words}: {target.share}, {target.outcome.strip('*')}")
    remedy = "what was measured is kept: perfsuite prove --from RAW --page FILE"
    with refusing("cannot write the page", page, remedy=remedy):
        write_page(proofs, page)
    say(f"wrote {page}")
    raise typer.Exit(0 if proofs[-1].is_met else 1)
