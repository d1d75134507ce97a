"""Proposes which baseline entries several nights would move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from msgspec import structs

from perfsuite.boundary import UsageError
from perfsuite.cli import time_of
from perfsuite.explain.parts import Side, explain
from perfsuite.judge.compare import Against
from perfsuite.judge.machine import judge_machine
from perfsuite.judge.noise import entries_of
from perfsuite.judge.verdict import IN_TURNS, learned
from perfsuite.model import (
    BaselineEntry,
    Change,
    Result,
    Run,
    Sku,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
)
from perfsuite.report import view
from perfsuite.report.text import plain_summary
from perfsuite.report.why import headline
from perfsuite.run.accept import acceptance_of, is_one_level, level_changes
from perfsuite.store.baselines import (
    Baselines,
    has_sku,
    locked,
    merge,
    other_kind,
    pack_path,
    pooled_entry,
    read_pack,
    read_sku,
    sku_folder,
    write_files,
)
from perfsuite.store.codec import StoredEntry, baseline_text
from perfsuite.store.exceptions import Exceptions
from perfsuite.store.sku import blocked_by, fingerprint_differs, sku_for

# Tells which runs are nights that a baseline may be moved by, and why the others are none.


# What a verdict with these words says is no level: the evidence did not decide, it is of another
# kind, or an author's limit is exceeded, which a new baseline would not repair.
NO_LEVEL = (Word.UNCLEAR, Word.INCOMPARABLE, Word.OVER_BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What the runs of one date say of a variant; ``verdict`` is the last one's."""

    date: str
    runs: tuple[Run, ...]
    variant: Variant
    entry: BaselineEntry
    verdict: Verdict

    @property
    def is_improvement(self) -> bool:
        """Say whether a faster level was confirmed, which needs no second night."""
        exact = any(change.theta < 0 and not change.degrees for change in self.verdict.changes)
        return self.verdict.word is Word.FASTER and (bool(self.verdict.confirmation) or exact)


def broken(run: Run, against: Against, entries: Mapping[str, BaselineEntry]) -> str:
    """Say why nothing of a run counts; nothing where it is a whole and quiet night.

    What was measured with changes that are in no commit cannot be measured again by anybody.
    """
    simple = {
        "it was interrupted": not run.finished,
        "it only checked": run.settings.check_only,
        f"it was a comparison with {run.against}": run.against is not None,
        f"its code is in no commit ({run.commit})": "dirty" in run.commit,
        f"machine-shift: {run.shift.reason if run.shift else ''}": run.shift is not None,
    }
    if found := next((why for why, is_so in simple.items() if is_so), ""):
        return found
    failed = [r for r in run.results if r.stage.is_canary and r.status not in _FINE]
    if failed:
        return f"canary {failed[0].variant} {failed[0].status}"
    return "; ".join(judge_machine(run, (), entries=entries, against=against).notes)


_FINE = (Status.OK, Status.SKIPPED)


def held_by_others(runs: Iterable[Run]) -> dict[str, str]:
    """Say which runs hold nothing of their own: shards whose merged run is among them as well.

    Of merged runs that share a shard the one of most shards counts.
    """
    found: dict[str, str] = {}
    wholes = sorted((run for run in runs if run.parts), key=lambda run: (len(run.parts), run.id))
    for run in reversed(wholes):
        parts = [part.run for part in run.parts]
        if shared := next((part for part in parts if part in found), ""):
            found[run.id] = f"of its shards {shared} counts already: {found[shared]}"
        else:
            found |= dict.fromkeys(parts, f"it is part of {run.id}")
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """What one whole run has to say: entries by variant, and why others have none."""

    run: Run
    entries: Mapping[str, BaselineEntry]
    left_out: Mapping[str, str]


def told_by(run: Run, exceptions: Exceptions, skus: Mapping[str, Mapping[str, str]]) -> Told:
    """Return what of a run counts; ``skus`` has the facts of each slug that has baselines."""
    variants = {variant.id: variant for variant in run.variants}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    away = exceptions.quarantined(run)
    left_out: dict[str, str] = {}
    asked = [result for result in run.asked if result.status is not Status.SKIPPED]
    for name in dict.fromkeys(result.variant for result in asked if result.variant in variants):
        sku = sku_for(variants[name], run.facts, own=run.sku)
        why = fingerprint_differs(sku, skus.get(sku.slug, {})) or _failure(name, asked)
        verdict = verdicts.get(name)
        if name in away:
            why = str(away[name].excepted)
        why = why or _no_level(verdict, asked)
        if why:
            left_out[name] = why
    entries = entries_of(structs.replace(run, results=tuple(_evidence(asked))))
    kept = {name: e for name, e in entries.items() if name in variants and name not in left_out}
    return Told(run, kept, left_out)


def _no_level(verdict: Verdict | None, asked: Iterable[Result]) -> str:
    """Say why what was measured of a variant tells no level, or nothing."""
    if verdict is None:
        return "it was not judged"
    if verdict.word in NO_LEVEL:
        return f"{verdict.word}: {verdict.reason}"
    fresh = {result.variant for result in asked if result.stage is Stage.CONFIRM}
    if verdict.confirmation == IN_TURNS and verdict.variant not in fresh:
        return "decided in turns: its screen was chosen for its time"
    return ""


def _failure(name: str, asked: Iterable[Result]) -> str:
    """Return the first stage of a variant that did not end ok; measured again, it counts once."""
    last = {result.stage: result for result in asked if result.variant == name}
    bad = [result for result in last.values() if result.status is not Status.OK]
    return f"{bad[0].status}: {bad[0].reason}".rstrip(": ") if bad else ""


def _evidence(asked: Sequence[Result]) -> Iterator[Result]:
    """Yield the results that decide: of what was confirmed the screen was chosen for its time."""
    confirmed = {result.variant for result in asked if result.stage is Stage.CONFIRM}
    yield from (r for r in asked if r.variant not in confirmed or r.stage is Stage.CONFIRM)


def nights_of(told: Iterable[Told], slug: str, since: Mapping[str, str]) -> dict[str, list[Night]]:
    """Return the nights of each variant on a SKU, oldest first; runs of one date are one night.

    ``since`` is by variant the run that is known already: only later ones count.
    """
    found: dict[tuple[str, str], list[tuple[Run, Variant, BaselineEntry]]] = {}
    for each in sorted(told, key=lambda each: each.run.id):
        run = each.run
        for variant in run.variants:
            entry = each.entries.get(variant.id)
            is_later = run.id > since.get(variant.id, "")
            if entry and is_later and sku_for(variant, run.facts, own=run.sku).slug == slug:
                key = (variant.id, run.started.partition("T")[0])
                found.setdefault(key, []).append((run, variant, entry))
    nights: dict[str, list[Night]] = {}
    for (name, date), parts in sorted(found.items()):
        nights.setdefault(name, []).append(_night(name, date, parts))
    return nights


def before_entries(
    told: Sequence[Told], since: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Return which runs say nothing of entries for being no later, by the run those come from.

    ``since`` is by SKU what it is in ``nights_of``. Runs are ordered by the clock of their start:
    after one was set back a night looks earlier than what it should move.
    """
    found: dict[str, set[str]] = {}
    for each in told:
        for variant in (v for v in each.run.variants if v.id in each.entries):
            slug = sku_for(variant, each.run.facts, own=each.run.sku).slug
            entry_run = since.get(slug, {}).get(variant.id, "")
            if each.run.id < entry_run:
                found.setdefault(entry_run, set()).add(each.run.id)
    return {entry_run: tuple(sorted(runs)) for entry_run, runs in sorted(found.items())}


def skus_of(run: Run) -> list[Sku]:
    """Return the SKUs that a run measured; gangs and compilation targets have their own."""
    found = [run.sku, *(sku_for(variant, run.facts, own=run.sku) for variant in run.variants)]
    return list({sku.slug: sku for sku in found}.values())


def _night(name: str, date: str, parts: Sequence[tuple[Run, Variant, BaselineEntry]]) -> Night:
    run, variant, last = parts[-1]
    alike = [(each, entry) for each, _, entry in parts if not other_kind(entry, last)]
    return Night(
        date=date,
        runs=tuple(each for each, _ in alike),
        variant=variant,
        entry=pooled_entry([entry for _, entry in alike]),
        verdict=next(verdict for verdict in run.verdicts if verdict.variant == name),
    )


def state_differs(entry: BaselineEntry, run: Run) -> str:
    """Say which state of the device blocks a comparison with an entry."""
    return blocked_by(entry.state, run.facts)


# What a person asks of a proposal, and what it says.


# A level is known from so many nights.
NIGHTS = 5
PROPOSED = ("new", "faster", "slower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What nights say of one variant, and what becomes of its entry.

    ``word`` is new, faster or slower where the entry moves; same, waiting (for more nights or for
    a person) or undecided where it stays, and ``why`` says it. ``entry`` is what would be stored.
    """

    sku: str
    variant: str
    word: str
    why: str
    old: StoredEntry | None
    entry: BaselineEntry
    nights: tuple[Night, ...]
    changes: tuple[Change, ...] = ()

    @property
    def is_proposed(self) -> bool:
        """Say whether the entry is written."""
        return self.word in PROPOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``earlier`` has the runs that say nothing
    of entries, for they began before the run those come from, by that run. ``environments``
    and ``commits`` are those of the runs that old entries come from.
    """

    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    earlier: Mapping[str, tuple[str, ...]]
    written: tuple[Path, ...]
    environments: Mapping[str, Mapping[str, str]]
    commits: Mapping[str, str]


# Proposes what baselines should say after several nights: a change to review, never a commit.


# A level is known from so many nights; an older one than the last few only makes files longer.
MOST_NIGHTS = 10
# Nothing moves by less of a variant's threshold than this share: it would only make diffs.
LEAST_SHARE = 1 / 3
CONFIRMED = "confirmed"


def propose(runs: Sequence[Run], root: Path, *, exceptions: Exceptions, terms: Terms) -> Proposal:
    """Write what nights say to the baselines' files in ``root``, which git then shows.

    Better levels that were confirmed are written at once, others after ``terms.nights``; a worse
    one only with ``include_slower``, however many nights agree.
    """
    if terms.include_slower and not terms.reason.strip():
        raise UsageError(
            "a slower level is not proposed without a reason",
            remedy='say why it may stay, as in --reason "the price of the fix of #12"',
        )
    # A run that is named twice is no more evidence than once.
    runs = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    newest = {sku.slug: (run, sku) for run in runs for sku in skus_of(run)}
    desks = {slug: _Desk.open(*of, root=root, terms=terms) for slug, of in newest.items()}
    told, refused = _sorted_out(runs, desks, exceptions)
    findings: list[Finding] = []
    written: list[Path] = []
    for _, desk in sorted(desks.items()):
        found = list(desk.findings(told))
        written += _write([each for each in found if each.is_proposed], desk, root)
        findings += found
    kept = [facts for each in desks.values() for facts in each.baselines.runs.values()]
    return Proposal(
        findings=tuple(findings),
        broken=refused,
        left_out={(n, each.run.id): why for each in told for n, why in each.left_out.items()},
        earlier=before_entries(told, {slug: desk.since for slug, desk in desks.items()}),
        written=tuple(written),
        environments={facts.run: facts.environment for facts in kept},
        commits={facts.run: facts.commit for facts in kept},
    )


def _sorted_out(
    runs: Sequence[Run], desks: Mapping[str, _Desk], exceptions: Exceptions
) -> tuple[list[Told], dict[str, str]]:
    """Return what whole runs have to say, and why the others have nothing."""
    told, refused, held = [], {}, held_by_others(runs)
    facts = {slug: desk.baselines.sku.facts for slug, desk in desks.items()}
    for run in runs:
        own, away = desks[run.sku.slug], exceptions.quarantined(run)
        quiet = structs.replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
        against = replace(own.against, facts=run.facts)
        why = held.get(run.id) or broken(quiet, against, own.baselines.entries)
        if why:
            refused[run.id] = why
        else:
            told.append(told_by(run, exceptions, facts))
    return told, refused


@dataclass(frozen=True, slots=True)
class _Desk:
    """Where one SKU's nights are compared with its entries."""

    baselines: Baselines
    against: Against
    terms: Terms

    @classmethod
    def open(cls, run: Run, sku: Sku, *, root: Path, terms: Terms) -> _Desk:
        """Read what is known of a SKU; the folder says which product it is, if there is one."""
        folder = sku_folder(root, sku.slug)
        sku = read_sku(folder) if has_sku(folder) else sku
        baselines = Baselines.load([root], sku)
        known = tuple(baselines.entries.values())
        source = f"baseline {sku.slug}"
        against = Against(facts=run.facts, slug=sku.slug, source=source, known=known)
        return cls(baselines, learned(against, run.variants), terms)

    @property
    def since(self) -> dict[str, str]:
        """The run that each entry comes from, by variant."""
        return {name: each.entry.run for name, each in self.baselines.stored.items()}

    def findings(self, told: Iterable[Told]) -> Iterator[Finding]:
        """Yield what nights say of each variant that has any since its entry's run."""
        stored = self.baselines.stored
        for name, nights in nights_of(told, self.baselines.sku.slug, self.since).items():
            yield self._finding(stored.get(name), nights)

    def _finding(self, old: StoredEntry | None, nights: Sequence[Night]) -> Finding:
        last = nights[-1]
        level = self._level(nights)
        found = Finding(
            sku=self.baselines.sku.slug,
            variant=last.variant.id,
            word="new",
            why="it has no entry",
            old=old,
            entry=pooled_entry([night.entry for night in level]),
            nights=tuple(level),
        )
        if old is None:
            return found
        if why := state_differs(old.entry, last.runs[-1]):
            return replace(found, word="undecided", why=f"not comparable: {why}")
        # Other work has another time, which says nothing of the old one.
        if (was := old.entry.case_version) != (version := last.entry.case_version):
            return replace(found, why=f"case version was {was} and is {version}")
        return self._compared(found, old.entry)

    def _level(self, nights: Sequence[Night]) -> list[Night]:
        """Return the last nights that no verdict would tell from each other."""
        *earlier, last = nights[-MOST_NIGHTS:]
        level = [last]
        for night in reversed(earlier):
            entries = [each.entry for each in level]
            if other_kind(night.entry, last.entry):
                break
            if not is_one_level(last.variant, night.entry, entries, self.against):
                break
            level.insert(0, night)
        return level

    def _compared(self, found: Finding, old: BaselineEntry) -> Finding:
        """Say whether the level moved, and whether that is known and meant well enough."""
        entries = [night.entry for night in found.nights]
        changes = level_changes(found.nights[-1].variant, old, entries, self.against)
        found = replace(found, changes=changes)
        if stay := _stay(changes, old, entries):
            # Metrics that came or went are recorded where nothing else moves with them.
            kind = other_kind(structs.replace(old, state=found.entry.state), found.entry)
            word, why = ("new", kind) if kind and stay[0] == "same" else stay
            return replace(found, word=word, why=why)
        moved = [each for each in changes if _is_sure(each)]
        is_other_code = any(abs(each.theta) > each.threshold for each in moved)
        word = "slower" if any(each.theta > 0 for each in moved) else "faster"
        entry = merge(old, found.entry, is_other_code=is_other_code).entry
        found = replace(found, entry=entry, word=word, why=f"{len(entries)} nights")
        if word == "faster" and found.nights[-1].is_improvement:
            return replace(found, why=CONFIRMED)
        wait = self._wait(word, len(entries))
        return replace(found, word="waiting", why=f"{word}: {wait}") if wait else found

    def _wait(self, word: str, nights: int) -> str:
        if nights < self.terms.nights:
            return f"{nights} of {self.terms.nights} nights"
        is_refused = word == "slower" and not self.terms.include_slower
        return "a person has to include it" if is_refused else ""


def _is_sure(change: Change) -> bool:
    """Say whether a change is large enough to move an entry, and certain to be one."""
    is_far = abs(change.theta) > LEAST_SHARE * change.threshold
    return is_far and (change.low > 0 or change.high < 0)


def _stay(
    changes: Sequence[Change], old: BaselineEntry, entries: Sequence[BaselineEntry]
) -> tuple[str, str] | None:
    """Return the word and the reason for which an entry stays, if it does."""
    if all(abs(each.theta) <= LEAST_SHARE * each.threshold for each in changes):
        return "same", "inside a third of its threshold"
    if not any(map(_is_sure, changes)):
        return "undecided", "its interval holds no change at all"
    if card := _only_card(old, entries):
        return "undecided", f"only one card says so, {card[:4]}, which the baseline has never seen"
    return None


def _only_card(old: BaselineEntry, entries: Sequence[BaselineEntry]) -> str:
    """Return the card that alone was measured, if the entry does not know it."""
    known, units = (
        {unit for entry in each for metric in entry.metrics.values() for unit in metric.values}
        for each in ([old], entries)
    )
    is_alone = len(units) == 1 and "" not in known and not units & known
    return units.pop() if is_alone else ""


def _write(found: Sequence[Finding], desk: _Desk, root: Path) -> tuple[Path, ...]:
    if not found:
        return ()
    sku, terms = desk.baselines.sku, desk.terms
    folder = sku_folder(root, sku.slug)
    files: dict[Path, bytes] = {}
    with locked(folder):
        ordered = sorted(found, key=lambda each: each.variant)
        for pack, each in groupby(ordered, key=lambda each: each.variant.partition(".")[0]):
            own = {f.variant: f for f in each}
            changed = {
                name: StoredEntry(
                    entry=f.entry, accepted=acceptance_of(_reason(f, terms), terms.by)
                )
                for name, f in own.items()
            }
            text = baseline_text(sku.slug, pack, {**read_pack(folder, pack), **changed})
            files[pack_path(folder, pack)] = text
        runs = {each.nights[-1].runs[-1].id: each.nights[-1].runs[-1] for each in found}
        return write_files(list(runs.values()), sku, folder, files)


def _reason(found: Finding, terms: Terms) -> str:
    """Return what is stored with the entry: a person's words first, then the evidence."""
    dates = [night.date for night in found.nights]
    days = f"{len(dates)} nights {dates[0]} to {dates[-1]}" if dates[1:] else f"1 night {dates[0]}"
    moved = [f"{c.metric} {c.theta:+.2%}" for c in found.changes if _is_sure(c)]
    version = [found.why] if found.word == "new" and found.old else []
    confirmed = ["confirmed"] if found.why == CONFIRMED else []
    evidence = f"{found.word}: {', '.join([*moved, *version, *confirmed, days])}"
    return f"{terms.reason}; {evidence}" if terms.reason.strip() else evidence


# The page that goes with a proposal: of each entry old, new, change, evidence and cause.


_COLUMNS = ("variant", "old", "new", "change", "interval", "nights", "processes", "cards", "why")


def markdown(proposal: Proposal) -> str:
    """Return the page; names and reasons are escaped, never markup."""
    return "\n".join(_lines(proposal)) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of text that may hold anything."""
    cells = [columns, ["---"] * len(columns), *(list(map(plain_summary, row)) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _lines(proposal: Proposal) -> Iterator[str]:
    found = proposal.findings
    proposed = [each for each in found if each.is_proposed]
    waiting = [each for each in found if each.word in {"waiting", "undecided"}]
    counts = Counter(each.word for each in found)
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    yield f"# Baseline proposal: {view.count(len(proposed), 'entry', 'entries')}"
    yield f"\n{told or 'No night says anything new'}. Nothing is committed: review it as git diff."
    for sku in sorted({each.sku for each in proposed}):
        yield f"\n## {plain_summary(sku)}\n"
        own = [each for each in proposed if each.sku == sku]
        yield from table(_COLUMNS, map(_row, own))
        yield ""
        yield from (_cause(each, proposal) for each in own)
    if waiting:
        yield "\n## Not proposed\n"
        yield from table(_COLUMNS, map(_row, waiting))
    yield from _uncounted(proposal)


def _uncounted(proposal: Proposal) -> Iterator[str]:
    """Yield which runs and results are no evidence, and why."""
    if proposal.broken:
        yield "\n## Nights that do not count\n"
        yield from table(("run", "why"), sorted(proposal.broken.items()))
    if proposal.earlier:
        yield "\n## Not later than an entry, and no evidence of it\n"
        rows = [(run, *_earlier(runs, run, proposal)) for run, runs in proposal.earlier.items()]
        yield from table(("entries come from", "runs before it", "why"), rows)
    if proposal.left_out:
        yield "\n## Left out of nights that do\n"
        rows = [(name, run, why) for (name, run), why in sorted(proposal.left_out.items())]
        yield from table(("variant", "run", "why"), rows)


def _earlier(runs: Sequence[str], entry_run: str, proposal: Proposal) -> tuple[str, str]:
    """Return which runs began before an entry's, and what to think of it."""
    span = f"{runs[0]} to {runs[-1]}" if runs[1:] else runs[0]
    nights = [night for found in proposal.findings for night in found.nights]
    has_later = any(run.id > entry_run for night in nights for run in night.runs)
    doubt = "" if has_later else ": if they are newer all the same, a clock was set back"
    return f"{len(runs)}: {span}", f"by their clocks they began before it{doubt}"


def _row(found: Finding) -> tuple[str, ...]:
    change = _telling(found)
    entries = [night.entry for night in found.nights]
    values = [_values(entry) for entry in entries]
    cards = {unit for each in values for unit in each}
    return (
        found.variant,
        time_of(found.old.entry) if found.old else "",
        time_of(found.entry),
        f"{change.metric} {view.percent(change.theta)}" if change else "",
        view.interval(change.low, change.high) if change else "",
        str(len(found.nights)),
        str(sum(len(row) for each in values for row in each.values())),
        str(len(cards)),
        f"{found.word}: {found.why}",
    )


def _values(entry: BaselineEntry) -> dict[str, tuple[float, ...]]:
    metric = entry.metrics.get("time_us")
    return dict(metric.values) if metric else {}


def _telling(found: Finding) -> Change | None:
    """Return the change that moved furthest, seen from its own threshold."""
    known = [each for each in found.changes if each.threshold or each.theta]
    return max(known, key=lambda each: abs(each.theta) / (each.threshold or 1e-9), default=None)


def _cause(found: Finding, proposal: Proposal) -> str:
    """Return the runs behind an entry, the commits between, and what the change is made of."""
    runs = [run for night in found.nights for run in night.runs]
    told = [f"from {', '.join(run.id for run in runs)}"]
    old = found.old.entry if found.old else None
    if old is not None:
        commits = proposal.commits.get(old.run, ""), runs[0].commit
        if all(commits) and commits[0] != commits[1]:
            told.append(f"commits {view.commit(commits[0])}..{view.commit(commits[1])}")
        told.append(_explained(found, old, proposal))
    return f"- **{plain_summary(found.variant)}**: {plain_summary('; '.join(filter(None, told)))}"


def _explained(found: Finding, old: BaselineEntry, proposal: Proposal) -> str:
    new = found.nights[-1].entry
    run = found.nights[-1].runs[-1]
    before = Side(
        kernels=old.kernels,
        codes=old.codes,
        artefact=old.artefact,
        environment=proposal.environments.get(old.run, {}),
    )
    now = Side(
        kernels=new.kernels,
        codes=new.codes,
        artefact=new.artefact,
        environment=run.facts.environment,
    )
    time = next((each for each in found.changes if each.metric == "time_us"), None)
    return headline(explain(time, before, now))
