"""What results are compared with: accepted entries, or else the first run on this unit."""

from __future__ import annotations

import itertools
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from perfsuite.devices.peaks import Peaks, efficiency, peaks_of, with_measured
from perfsuite.judge.noise import entries_of
from perfsuite.judge.rule import looks_of
from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    Expected,
    Pack,
    Regime,
    Result,
    Run,
    Side,
    Stage,
    Status,
    Variant,
    VariantRun,
    Verdict,
    Word,
    because,
    built_in,
    cards_of,
)
from perfsuite.packs.select import missing_need
from perfsuite.report import view
from perfsuite.run.against import is_one_code
from perfsuite.run.config import TimeLimit
from perfsuite.stats import estimate, grouped
from perfsuite.store.baselines import NO_FACTS, Baselines, Root, facts_of
from perfsuite.store.runs import ended_runs, last_run, list_runs, read_references
from perfsuite.store.sku import differing, differs, skus_of, version_changes

# Kernels that the reference had no time to trace are looked for in so many runs.
TRACED_WITHIN = 30
# So many of a run's references are named, the others are counted.
MOST_SOURCES = 3
# What was measured so is nothing to compare later runs with, unless somebody names it.
AWAY = frozenset({Word.SLOWER, Word.ENVIRONMENT})
# Seconds for what follows the last measurement, for the kernels of a variant that is new, and of
# all. A gang takes as long as so many others. On a GPU such a share of what changed is measured in
# pairs.
REPORT_S, TRACE_S, TRACES_S, GANG, DOUBTED = 3.0, 0.5, 10.0, 2, 0.1
# How long pairs of another claim may begin.
LIMIT_S = 60.0
# Of what is only counted both sides run at once. A host's pairs have many more blocks than it has
# alone. So many times longer their processes took, until this run knows.
AT_ONCE, BY_HOST = 0.5, 2.5
# What was said is kept every few seconds, of a long run more seldom.
SAID_S, SAID_SHARE = 5.0, 0.03
# A command that names more by their ids is no use on a terminal: it names cases.
MOST_CHARACTERS = 150
# More than this share of a measured ceiling is a mistake of the case, not a record.
PLAUSIBLE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a run is compared with: what is ``expected`` of each variant, and of all together.

    ``previous`` is the run that is most variants' reference, else the last one, with the results
    that entries come from.
    ``reached`` are the peaks that the baselines know.
    """

    expected: Mapping[str, Expected]
    notes: tuple[str, ...] = ()
    previous: Run | None = None
    reached: Peaks | None = None

    def hold(self, run: Run) -> Run:
        """Return the run with what is expected of each variant."""
        variants, canaries = (
            tuple(replace(one, expected=self.expected.get(one.id, Expected())) for one in side)
            for side in (run.variants, run.canaries)
        )
        return replace(run, variants=variants, canaries=canaries)


class Forecast:
    """How long a run still takes: as before, corrected by how far off that was so far.

    A check costs as much as a process. A variant that was never measured counts as the others, a
    gang as several. What follows the screen counts before it begins: pairs with the old code, and
    those of ``claims`` that seem to need them. ``said`` are the seconds since the start, and those
    that were said to be left: a limit lets no more be left, and all of it is used where work
    ``is_cut``.
    """

    def __init__(self, before: Run | None, run: Run, units: int, limit: TimeLimit) -> None:
        self._units, self._limit, self._step = units, limit, looks_of(run.settings).step
        self._built, count = built_in(run.facts.device), run.settings.processes
        # What processes took and were planned to take, by whether they only count, and in pairs.
        self._off = defaultdict[tuple[bool, bool], list[tuple[float, float]]](list)
        # Whether what was screened needs pairs. A host's stored times decide nothing.
        self._needs = {False: [1.0 if self._built.is_host else DOUBTED], True: [DOUBTED]}
        self.said, self.is_cut = list[tuple[float, float]](), False
        self.claims, self._claim_pairs = dict[str, ClaimInstance](), run.settings.confirm_processes
        # How many processes of a side are planned, by variant and whether they are in pairs; how
        # many seconds a process takes.
        self._planned = dict[tuple[str, bool], int]()
        first_s = self._built.process_s * count / (1 + count)
        self._each_s = {o.id: first_s * (GANG if o.variant.is_gang else 1) for o in run.variants}
        self._exact = {o.id for o in run.variants if o.variant.case.regime is Regime.EXACT}
        for r in (*(before.results if before else ()), *run.results):  # of one resumed its own
            if r.evidence and r.stage is Stage.SCREEN:
                self._each_s[r.variant] = r.wall_s / (1 + len(r.evidence))
        able = [one for one in run.variants if not missing_need(one.variant, run.facts)]
        new = 0 if run.against else sum(not (o.entry or o.id in self._exact) for o in able)
        self._traces_s = min(TRACES_S, TRACE_S * new)
        if not (run.against or run.shard):
            changed = [o.variant for o in able if o.entry and not (o.last or is_one_code(o, run))]
            self.plan(changed, self._step, {one.id for one in changed})

    def plan(self, some: Sequence[Variant], processes: int, compared: Collection[str]) -> None:
        """Expect so many processes of each of these variants, on two sides if it is compared."""
        for one in some:
            key, is_exact = (one.id, one.id in compared), one.id in self._exact
            if not self._planned.get(key):  # of pairs a step more is expected, until it is known
                self._planned[key] = 2 if is_exact else (1 + key[1]) * (1 + processes)

    def took(self, result: Result, steps: int = 0, *, needs_pairs: bool = False) -> float:
        """Learn what a variant took, whether it needs pairs, and of those how many steps more.

        Returns the seconds that are left.
        """
        name, is_pair = key = result.variant, (result.variant, False) not in self._planned
        is_exact, took_s = name in self._exact, result.wall_s / (1 + len(result.evidence))
        self._planned.pop(key, None)
        if result.evidence and self._each_s[name]:
            self._off[is_exact, is_pair].append((took_s, self._each_s[name]))
        if is_pair and not is_exact:
            self._planned[key] = steps * (1 + self._step)
        elif not is_pair:
            self._each_s[name] = took_s if result.evidence else self._each_s[name]
            self._needs[is_exact].append(float(needs_pairs))
            if not needs_pairs:
                self._planned.pop((name, True), None)
        return self.left_s()

    def end_pairs(self) -> None:
        """Expect no more pairs."""
        self._planned = {key: count for key, count in self._planned.items() if not key[1]}

    def takes_s(self, claim: ClaimInstance) -> float:
        """Return about how many seconds a claim's pairs take."""
        sides_s = self._each_s[claim.faster] + self._each_s[claim.than]
        return (1 + self._claim_pairs) * sides_s

    def left_s(self) -> float:
        """Return about how many seconds are left, 0 of a device that has none; keep it."""
        claims_s = sum(map(self.takes_s, self.claims.values())) / self._units
        left_s = REPORT_S + self._traces_s + min(LIMIT_S, claims_s)  # traces end at their limit
        # Compilers are off by their own share, and so are pairs.
        off = {(False, False): 1.0, (True, False): 1.0, (True, True): AT_ONCE}
        off[False, True] = BY_HOST if self._built.is_host else 1.0
        for kind, known in self._off.items():
            off[kind] = sum(took for took, _ in known) / sum(due for _, due in known)
        needs = {is_exact: fmean(known) for is_exact, known in self._needs.items()}
        for (name, is_pair), count in self._planned.items():
            is_exact, due_s = name in self._exact, count * self._each_s[name] / self._units
            if (name, False) in self._planned:  # it was not screened yet
                due_s *= off[is_exact, False] * (needs[is_exact] if is_pair else 1)
            left_s += due_s * (2 * off[is_exact, True] if is_pair else 1)
        left_s = self._limit.left_s() if self.is_cut else min(left_s, self._limit.left_s())
        now_s = time.monotonic() - self._limit.started
        if not self.said or now_s > self.said[-1][0] + max(SAID_S, SAID_SHARE * now_s):
            self.said.append((round(now_s, 1), round(left_s, 1)))
        return left_s if self._built.process_s else 0.0


def find_expected(
    roots: Sequence[Root], folder: Path, *, run: Run, packs: Sequence[Pack] = ()
) -> Basis:
    """Return the baselines of each variant's SKU; where a SKU has none, the reference on this unit.

    A run has several SKUs when it holds gangs or compilation targets. ``packs`` say which variants
    are ceilings. Only runs before this one, or before its shards, count.
    """
    skus, here = skus_of(run), {*run.boards.values()}
    before = min((part.run for part in run.parts), default=run.id)
    stored = Baselines.load_each(roots, (run.sku, *skus.values()))
    uncovered = [name for name, sku in skus.items() if not stored[sku.slug].covers(name)]
    last = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=before)
    notes = [note for sku in skus.values() for note in stored[sku.slug].notes]
    reference = find_reference(folder, run, uncovered, last, notes) if last else {}
    entries: dict[str, BaselineEntry | None] = {
        name: stored[sku.slug].entries.get(name) for name, sku in skus.items()
    }
    entries |= {name: each.entry for name, each in reference.items()}
    known_runs = {n: each.run_of(cards_of(run)) for n, each in entries.items() if each}
    runs = runs_behind(folder, run, {n: i for n, i in known_runs.items() if i < before})
    # Of runs by their id: what is stored of one that was accepted counts.
    facts = {each.id: facts_of(each) for each in runs.values()}
    facts |= {name: each for known in stored.values() for name, each in known.runs.items()}
    mates = {c for each in facts.values() for c, board in each.boards.items() if board in here}
    abroad = {
        name for name, each in facts.items() if differing(each.environment, run.facts.environment)
    }
    # What comes with a pack was measured in the pack's repository.
    shipped = {each.entries[name].run for each in stored.values() for name in each.shipped}
    expected = {}
    for name, sku in skus.items():
        baselines, entry = stored[sku.slug], entries[name]
        known = facts.get(entry.run if entry else "", NO_FACTS)
        own = facts.get(entry.run_of(cards_of(run)) if entry else "", NO_FACTS)
        covers, problem = baselines.covers(name), baselines.fingerprint_problem
        expected[name] = Expected(
            entry=entry,
            source=baselines.name_of(name) if covers else reference.get(name, Expected()).source,
            commit="" if entry and entry.run in shipped else known.commit,
            environment=own.environment,
            source_a=known.source_of(name),
            elsewhere=frozenset(c for c in entry.cards if entry.run_of([c]) in abroad)
            if entry
            else frozenset(),
            board_mates=entry.cards & mates if entry else frozenset(),
            why_not=because("other_kind", text=problem) if problem else None,
            slug=sku.slug if covers and not problem else "",
        )
    most = Counter(each.entry.run for each in reference.values() if each.entry).most_common(1)
    previous = runs.get(most[0][0]) if most else last
    if previous:  # a report draws the results that entries come from as before
        there = {one.id for one in previous.variants}
        more = [VariantRun(variant=one.variant) for one in run.variants if one.id not in there]
        previous = replace(previous, variants=(*previous.variants, *more))
        ids = {one.id for one in previous.every}
        behind = [result for each in runs.values() for result in each.results]
        previous = previous.having(results=[r for r in behind if r.variant in ids])
    whole = Counter(sku.slug for sku in skus.values())
    for slug, count in sorted(Counter(skus[name].slug for name in uncovered).items()):
        what = slug if count == whole[slug] else f"{count} of {whole[slug]} variants on {slug}"
        instead = "" if last else ", and no earlier run on this device to compare with"
        notes.append(f"no baseline for {what}{instead}")
    ours = stored[run.sku.slug]
    ceilings = () if ours.fingerprint_problem else tuple(ours.entries.values())
    return Basis(
        expected=expected,
        notes=tuple(dict.fromkeys(notes)),
        previous=previous,
        reached=with_measured(peaks_of(run.sku.slug), ceilings, packs),
    )


def find_reference(
    folder: Path, run: Run, names: Collection[str], last: Run, notes: list[str]
) -> dict[str, Expected]:
    """Return each variant's entry of its first run on this unit, or of the one that was named.

    It is of the same version, regime and state as the variant now. Where no run up to the ``last``
    is, the last one tells what differs. Kernels may be of a later run that was the same: there is
    no time to trace all at once.
    """
    found: dict[str, BaselineEntry] = {}
    sources: dict[str, str] = {}
    named = {name: i for name, i in read_references(folder, run).items() if i <= last.id}
    # What cannot run here has an entry in no run.
    able = [one for one in run.every if not missing_need(one.variant, run.facts)]
    kinds = {one.id: _kind(one.variant) for one in able if one.id in names}

    def needs(plan: Run) -> list[str]:
        state = differs(plan.facts.state, run.facts.state)
        return [
            one.id
            for one in plan.every
            if _kind(one.variant) == kinds.get(one.id)
            and (one.variant.target or not state)
            and named.get(one.id, "") <= plan.id
            and not (one.id in found and found[one.id].kernels)
        ]

    def is_open(place: tuple[int, Path]) -> bool:
        is_traced = all(entry.kernels for entry in found.values())
        return kinds.keys() > found.keys() or (place[0] < TRACED_WITHIN and not is_traced)

    def damaged(path: Path) -> None:
        notes.append(f"{path} cannot be read: what ran there first is compared with a later run")

    paths = (path for path in reversed(list_runs(folder)) if path.stem <= last.id)
    asked = (path for _, path in itertools.takewhile(is_open, enumerate(paths)))
    sku, unit = run.sku.slug, run.facts.unit
    for each in ended_runs(asked, sku=sku, unit=unit, needs=needs, damaged=damaged):
        words = _words(each)
        for name, entry in entries_of(each).items():
            is_named = named.get(name) == each.id
            if name in found and words.get(name) is Word.SAME:
                found[name] = replace(found[name], kernels=entry.kernels, codes=entry.codes)
            elif name not in found and (is_named or words.get(name) not in AWAY):
                found[name] = entry
                how = "run {}, named by baseline reset" if is_named else "first run {}"
                sources[name] = how.format(each.id)
    words = _words(last)
    for name, entry in entries_of(last).items():
        if name in kinds.keys() - found.keys() and words.get(name) not in AWAY:
            found[name], sources[name] = entry, f"last run {last.id}"
    return {name: Expected(entry=entry, source=sources[name]) for name, entry in found.items()}


def _words(run: Run) -> dict[str, Word]:
    return {verdict.variant: verdict.word for verdict in run.verdicts}


def _kind(variant: Variant) -> tuple[int, Regime]:
    return variant.case.version, variant.case.regime


def runs_behind(folder: Path, run: Run, of_run: Mapping[str, str]) -> dict[str, Run]:
    """Return the runs on this unit that variants' entries come from, with their results alone."""
    names = grouped(of_run, of_run.__getitem__)
    paths = [path for path in list_runs(folder) if path.stem in names]
    sku, unit = run.sku.slug, run.facts.unit
    found = ended_runs(paths, sku=sku, unit=unit, needs=lambda plan: names.get(plan.id, ()))
    return {each.id: each for each in found}


def beside(run: Run) -> Run:
    """Return the run with what side A did as what is expected of its code."""
    if run.against is None:
        return run
    entries = entries_of(run, [r for r in run.aside if r.side is Side.A and not r.claim])
    variants = []
    for one in run.variants:
        if entry := entries.get(one.id):
            held = Expected(
                entry=entry,
                source=str(run.against),
                commit=run.against.commit,
                environment=run.against.environment,
                slug=one.expected.slug,
                in_turns=True,
            )
            one = replace(one, expected=held)  # noqa: PLW2901 - the same variant
        variants.append(one)
    return replace(run, variants=tuple(variants))


def source_of(run: Run) -> str:
    """Return in words what a run is compared with; of what was judged only where it was.

    Baselines may have been accepted since: what a run was compared with, its verdicts know.
    """
    judged = [o for o in run.variants if not o.last or o.last.status is Status.OK]
    found = [o.verdict or o.expected for o in judged if not o.verdict or o.verdict.is_compared]
    found = [] if run.settings.check_only else sorted(found, key=lambda each: not each.in_turns)
    counts = Counter(each.source for each in found if each.source)
    whole = sum(1 for one in run.variants if one.last and one.last.status is Status.OK)
    few = f" ({counts.total()} of {whole} variants)" if 0 < 2 * counts.total() < whole else ""
    sources = list(counts)
    more = [f"{len(sources) - MOST_SOURCES} more"] if len(sources) > MOST_SOURCES else []
    return "; ".join([*sources[:MOST_SOURCES], *more]) + few


def plausible(result: Result, variant: Variant, peaks: Peaks) -> Result:
    """Return the result, as an error if it is faster than the hardware can be."""
    # In a gang a switch may sum on the way, and carry less than the formula says.
    work = variant.work or next((e.work for e in result.evidence if e.work), None)
    if result.status is not Status.OK or work is None or variant.is_gang:
        return result
    values = [estimate(e.samples("time_us")) for e in result.evidence if e.blocks]
    share = efficiency(work, peaks, min(values)) if values else None
    if share is None or share <= PLAUSIBLE or not variant.case.cold:
        return result
    return replace(
        result,
        status=Status.ERROR,
        reason=f"{share:.0%} of the measured ceiling. The work formula counts too much, the "
        "launch does too little, or its inputs were not cold",
    )


def joined(results: Sequence[Result]) -> Result:
    """Return a canary's results on several units as one; a unit where it failed is not in it."""
    good = [result for result in results if result.status is Status.OK]
    evidence = tuple(process for result in good for process in result.evidence)
    wall_s = max(result.wall_s for result in results)
    return replace((good or results)[0], evidence=evidence, wall_s=wall_s)


def rank(one: VariantRun, unit: str) -> int:
    """Say how unwelcome a variant is on a unit, where it was screened before.

    The baseline's own unit is best, for its level cancels; then another than the screen's.
    """
    screened = one.result(Stage.SCREEN)
    if screened is None or (one.entry and unit in one.entry.cards):
        return 0
    return 1 + any(item.unit == unit for item in screened.evidence)


def gaps(run: Run, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Say what was not measured, whose time was not compared, and what baselines lack, by SKU."""
    yield from _undecided(run, verdicts)
    yield from _compiled(run, verdicts)
    slugs = {one.id: one.expected.slug for one in run.variants}
    if some := [v for v in verdicts if v.is_compared and not (v.in_turns or slugs[v.variant])]:
        told = f"{view.count(len(some), 'variant')} compared with the first run of each here"
        yield f"{told}, for want of a baseline; perfsuite baseline reset RUN chooses another"
    why = because("not_timed")
    if count := sum(why in verdict.reasons for verdict in verdicts):
        yield f"{view.count(count, 'variant')}: {view.sentence(why)}"
    if run.settings.check_only:
        return
    failed = {result.variant for result in run.results if result.status is not Status.OK}
    measured = {result.variant for result in run.results} - failed
    held = {one.id: one.expected for one in run.every if one.id in measured and one.expected.slug}
    whole = Counter(each.slug for each in held.values())
    without = Counter(each.slug for each in held.values() if each.entry is None)
    for slug, count in sorted(without.items()):
        yield (
            f"{count} of {whole[slug]} measured have no baseline entry for {slug} yet: "
            "accept them as well"
        )


def _compiled(run: Run, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Say what other versions of compilers made of kernels: how many the same, what others have."""
    here, told = run.facts.environment, {each.variant: each for each in verdicts}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in (one for one in run.variants if one.variant.target and one.id in told):
        changed, how = ", ".join(version_changes(one.expected.environment, here)), "the same"
        if change := max(told[one.id].changes, key=lambda each: abs(each.theta), default=None):
            less = "less" if change.unit else "fewer"
            how = f"with {'more' if change.current > change.baseline else less} {change.metric}"
        found[changed][how] += 1
    found.pop("", None)
    for changed, kinds in found.items():
        ways = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        yield f"{changed}: of {view.count(kinds.total(), 'kernel')} {ways}"


def _undecided(run: Run, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Say in one line what has neither number nor decision, why, and what measures it alone."""
    unclear = {v.variant: v.reasons[-1:] for v in verdicts if v.word is Word.UNCLEAR}
    whys = {name: " ".join(map(view.sentence, why)) for name, why in unclear.items()}
    whys |= {r.variant: r.reason for r in run.results if r.status is Status.DISTURBED}
    if not whys:
        return
    skipped = {r.variant for r in run.results if r.status is Status.SKIPPED}
    (why, count), *others = Counter(whys.values()).most_common()
    more = f" ({count} of them; {view.count(len(others), 'other reason')})" if others else ""
    revision = run.against and (view.commit(run.against.commit) or run.against.name)
    beside_it = [f"--perf-against={revision}"] if revision else []
    again = view.command(" ".join(whys), *beside_it)
    if len(again) > MOST_CHARACTERS:
        cases = {one.variant.case.name for one in run.variants if one.id in whys}
        again = shlex.join(["pytest", "--perf", "-k", " or ".join(sorted(cases)), *beside_it])
    total = len(run.variants) - len(skipped)
    yield f"{len(whys)} of {total} without a number or a decision: {why}{more}; {again}"
