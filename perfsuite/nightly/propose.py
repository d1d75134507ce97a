"""Proposes what baselines should say after several nights: a change to review, never a commit."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from perfsuite.boundary import PerfError, UsageError, user_name
from perfsuite.judge.compare import Against, is_one_level, level_changes
from perfsuite.judge.machine import judge_machine
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    BaselineEntry,
    Change,
    Confirmation,
    Result,
    Run,
    Sku,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report import view
from perfsuite.report.data import Side, explained_by
from perfsuite.report.text import in_markdown, table
from perfsuite.run.accept import acceptance_of
from perfsuite.run.project import BaselinesOption, Project, find_project, say, time_of
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
from perfsuite.store.codec import RunFacts, StoredEntry, baseline_text
from perfsuite.store.files import refusing, replace_file
from perfsuite.store.runs import list_runs, load_run
from perfsuite.store.sku import blocked_by, fingerprint_differs, sku_for

# A level is known from so many nights; older ones than the last few only make files longer.
NIGHTS, MOST_NIGHTS = 5, 10
# Without names so many of the newest runs are read: each holds every sample of a night.
MOST_RUNS = 30
# Nothing moves by less of a variant's threshold than this share: it would only make diffs.
LEAST_SHARE = 1 / 3
CONFIRMED = "confirmed"
_COLUMNS = ("variant", "old", "new", "change", "interval", "nights", "processes", "cards", "why")


class Terms(Struct, frozen=True, kw_only=True):
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


class Night(Struct, frozen=True, kw_only=True):
    """What the runs of one date say of a variant; ``verdict`` is the last one's."""

    date: str
    runs: tuple[Run, ...]
    variant: Variant
    entry: BaselineEntry
    verdict: Verdict


class Finding(Struct, frozen=True, kw_only=True):
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
        return self.word in {"new", "faster", "slower"}


class Proposal(Struct, frozen=True, kw_only=True):
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``earlier`` has the runs that say nothing
    of entries, for they began before the run those come from, by that run. ``before`` are the runs
    that entries come from.
    """

    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    earlier: Mapping[str, tuple[str, ...]]
    written: tuple[Path, ...]
    before: Mapping[str, RunFacts]


class _Product(Struct, frozen=True):
    """One SKU: its entries, and how nights are compared with them."""

    baselines: Baselines
    against: Against
    terms: Terms

    @classmethod
    def open(cls, run: Run, sku: Sku, *, root: Path, terms: Terms) -> _Product:
        """Read what is known of a SKU; the folder says which product it is, if there is one."""
        folder = sku_folder(root, sku.slug)
        baselines = Baselines.load([root], read_sku(folder) if has_sku(folder) else sku)
        known = tuple(baselines.entries.values())
        source = f"baseline {sku.slug}"
        against = Against(facts=run.facts, slug=sku.slug, source=source, known=known)
        return cls(baselines, against.learned([one.variant for one in run.variants]), terms)

    def since(self, name: str) -> str:
        """Return the run that a variant's entry comes from, if it has one."""
        stored = self.baselines.stored.get(name)
        return stored.entry.run if stored else ""

    def finding(self, nights: Sequence[Night]) -> Finding:
        """Say what becomes of an entry after a variant's nights since its run, oldest first."""
        level = self._level(nights)
        last, old = level[-1], self.baselines.stored.get(level[-1].variant.id)
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
        if why := blocked_by(old.entry.state, last.runs[-1].facts):
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
            if other_kind(night.entry, last.entry) or not is_one_level(
                last.variant, night.entry, entries, self.against
            ):
                break
            level.insert(0, night)
        return level

    def _compared(self, found: Finding, old: BaselineEntry) -> Finding:
        """Say whether the level moved, and whether that is known and meant well enough."""
        last, entries = found.nights[-1], [night.entry for night in found.nights]
        changes = level_changes(last.variant, old, entries, self.against)
        found = replace(found, changes=changes)
        if stay := _stay(changes, old, entries):
            # Metrics that came or went are recorded where nothing else moves with them.
            kind = other_kind(replace(old, state=found.entry.state), found.entry)
            word, why = ("new", kind) if kind and stay[0] == "same" else stay
            return replace(found, word=word, why=why)
        moved = [each for each in changes if _is_sure(each)]
        is_other_code = any(abs(each.theta) > each.threshold for each in moved)
        word = "slower" if any(each.theta > 0 for each in moved) else "faster"
        entry = merge(old, found.entry, is_other_code=is_other_code).entry
        found = replace(found, entry=entry, word=word, why=f"{len(entries)} nights")
        verdict = last.verdict
        exact = any(change.theta < 0 and not change.degrees for change in verdict.changes)
        # A faster level that was confirmed needs no second night.
        if word == verdict.word == Word.FASTER and (verdict.confirmation or exact):
            return replace(found, why=CONFIRMED)
        wait = ""
        if len(entries) < self.terms.nights:
            wait = f"{len(entries)} of {self.terms.nights} nights"
        elif word == "slower" and not self.terms.include_slower:
            wait = "a person has to include it"
        return replace(found, word="waiting", why=f"{word}: {wait}") if wait else found

    def write(self, proposed: Sequence[Finding], root: Path) -> tuple[Path, ...]:
        """Write what is proposed for this SKU, a file a pack."""
        sku, terms = self.baselines.sku, self.terms
        folder = sku_folder(root, sku.slug)
        files: dict[Path, bytes] = {}
        with locked(folder):
            ordered = sorted(proposed, key=lambda each: each.variant)
            for pack, own in groupby(ordered, key=lambda each: each.variant.partition(".")[0]):
                stored = read_pack(folder, pack)
                for each in own:
                    accepted = acceptance_of(_reason(each, terms), terms.by)
                    stored[each.variant] = StoredEntry(entry=each.entry, accepted=accepted)
                files[pack_path(folder, pack)] = baseline_text(sku.slug, pack, stored)
            runs = {each.nights[-1].runs[-1].id: each.nights[-1].runs[-1] for each in proposed}
            return write_files(list(runs.values()), sku, folder, files)


def propose(runs: Sequence[Run], root: Path, *, exceptions: Exceptions, terms: Terms) -> Proposal:
    """Write what nights say to the baselines' files in ``root``, which git then shows.

    Better levels that were confirmed are written at once, others after ``terms.nights``; a worse
    one only with ``include_slower``, however many nights agree. Runs are ordered by the clock of
    their start: after one was set back a night looks earlier than what it should move.
    """
    if terms.include_slower and not terms.reason.strip():
        raise UsageError(
            "a slower level is not proposed without a reason",
            remedy='say why it may stay, as in --reason "the price of the fix of #12"',
        )
    # A run that is named twice is no more evidence than once.
    runs = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    newest = {sku.slug: (run, sku) for run in runs for sku in _skus_of(run)}
    products = {slug: _Product.open(*of, root=root, terms=terms) for slug, of in newest.items()}
    refused = _refused(runs, products, exceptions)
    left_out: dict[tuple[str, str], str] = {}
    earlier: dict[str, set[str]] = {}
    seen: dict[str, dict[str, list[tuple[Run, Variant, BaselineEntry]]]] = {}
    for run in (each for each in runs if each.id not in refused):
        for variant, product, entry, why in _said(run, products, exceptions):
            since = product.since(variant.id)
            if why:
                left_out[variant.id, run.id] = why
            elif entry and run.id > since:
                rows = seen.setdefault(product.baselines.sku.slug, {})
                rows.setdefault(variant.id, []).append((run, variant, entry))
            elif entry and run.id < since:
                earlier.setdefault(since, set()).add(run.id)
    findings: list[Finding] = []
    written: list[Path] = []
    for slug, product in sorted(products.items()):
        own = sorted(seen.get(slug, {}).items())
        found = [product.finding(list(_nights(each))) for _, each in own]
        if proposed := [each for each in found if each.is_proposed]:
            written += product.write(proposed, root)
        findings += found
    return Proposal(
        findings=tuple(findings),
        broken=refused,
        left_out=left_out,
        earlier={since: tuple(sorted(ids)) for since, ids in sorted(earlier.items())},
        written=tuple(written),
        before={k: v for each in products.values() for k, v in each.baselines.runs.items()},
    )


def _skus_of(run: Run) -> list[Sku]:
    """Return the SKUs that a run measured; gangs and compilation targets have their own."""
    return [run.sku, *(sku_for(one.variant, run.facts, own=run.sku) for one in run.variants)]


def _refused(
    runs: Sequence[Run], products: Mapping[str, _Product], exceptions: Exceptions
) -> dict[str, str]:
    """Say why runs count for nothing, by run.

    Shards hold nothing of their own where their merged run is there; of merged runs that share a
    shard the one of most shards counts.
    """
    held: dict[str, str] = {}
    wholes = sorted((run for run in runs if run.parts), key=lambda run: (len(run.parts), run.id))
    for run in reversed(wholes):
        parts = [part.run for part in run.parts]
        if shared := next((part for part in parts if part in held), ""):
            held[run.id] = f"of its shards {shared} counts already: {held[shared]}"
        else:
            held |= dict.fromkeys(parts, f"it is part of {run.id}")
    found: dict[str, str] = {}
    for run in runs:
        own = products[run.sku.slug]
        against = dataclasses.replace(own.against, facts=run.facts)
        why = held.get(run.id) or _broken(run, against, own.baselines, exceptions)
        if why:
            found[run.id] = why
    return found


def _broken(run: Run, against: Against, baselines: Baselines, exceptions: Exceptions) -> str:
    """Say why nothing of a run counts; nothing where it is a whole and quiet night.

    What was measured with changes that are in no commit cannot be measured again by anybody.
    """
    simple = {
        "it was interrupted": not run.finished,
        "it only checked": run.settings.check_only,
        f"it was a comparison with {run.against}": run.against is not None,
        f"its code is in no commit ({run.commit})": run.is_dirty,
        f"machine-shift: {run.shift.reason if run.shift else ''}": run.shift is not None,
    }
    if found := next((why for why, is_so in simple.items() if is_so), ""):
        return found
    fine = {Status.OK, Status.SKIPPED}
    for result in run.results:
        if result.stage.is_canary and result.status not in fine:
            return f"canary {result.variant} {result.status}"
    away = exceptions.quarantined(run)
    quiet = replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
    return view.told(judge_machine(quiet, (), entries=baselines.entries, against=against).notes)


def _said(
    run: Run, products: Mapping[str, _Product], exceptions: Exceptions
) -> Iterator[tuple[Variant, _Product, BaselineEntry | None, str]]:
    """Yield what a run measured of each variant, and why that is no evidence, if it is none."""
    variants = {one.id: one.variant for one in run.variants}
    asked = [each for each in run.asked if each.status is not Status.SKIPPED]
    away = exceptions.quarantined(run)
    # Of what was confirmed the screen was chosen for its time.
    fresh = {result.variant for result in asked if result.stage is Stage.CONFIRM}
    deciding = [r for r in asked if r.variant not in fresh or r.stage is Stage.CONFIRM]
    entries = entries_of(run, deciding)
    for name in dict.fromkeys(each.variant for each in asked if each.variant in variants):
        sku = sku_for(variants[name], run.facts, own=run.sku)
        product = products[sku.slug]
        why = fingerprint_differs(sku, product.baselines.sku.facts) or _failure(name, asked)
        why = str(away[name].excepted) if name in away else why or _no_level(name, run, fresh)
        yield variants[name], product, entries.get(name), why


def _failure(name: str, asked: Iterable[Result]) -> str:
    """Return the first stage of a variant that did not end ok; measured again, it counts once."""
    last = {result.stage: result for result in asked if result.variant == name}
    bad = [result for result in last.values() if result.status is not Status.OK]
    return f"{bad[0].status}: {bad[0].reason}".rstrip(": ") if bad else ""


def _no_level(name: str, run: Run, fresh: Iterable[str]) -> str:
    """Say why what was measured of a variant tells no level, or nothing."""
    verdict = next((each for each in run.verdicts if each.variant == name), None)
    if verdict is None:
        return "it was not judged"
    if not verdict.word.is_level:
        return f"{verdict.word}: {verdict.reason}"
    if verdict.confirmation is Confirmation.IN_TURNS and name not in fresh:
        return "decided in turns: its screen was chosen for its time"
    return ""


def _nights(rows: Iterable[tuple[Run, Variant, BaselineEntry]]) -> Iterator[Night]:
    """Yield a variant's nights, oldest first; runs of one date are one night."""

    def date_of(row: tuple[Run, Variant, BaselineEntry]) -> str:
        return row[0].started.partition("T")[0]

    for date, same in groupby(sorted(rows, key=date_of), key=date_of):
        parts = list(same)
        run, variant, last = parts[-1]
        alike = [(each, entry) for each, _, entry in parts if not other_kind(entry, last)]
        yield Night(
            date=date,
            runs=tuple(each for each, _ in alike),
            variant=variant,
            entry=pooled_entry([entry for _, entry in alike]),
            verdict=next(each for each in run.verdicts if each.variant == variant.id),
        )


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
    known, units = (
        {unit for entry in each for metric in entry.metrics.values() for unit in metric.values}
        for each in ([old], entries)
    )
    if len(units) == 1 and "" not in known and not units & known:
        (card,) = units
        return "undecided", f"only one card says so, {card[:4]}, which the baseline has never seen"
    return None


def _reason(found: Finding, terms: Terms) -> str:
    """Return what is stored with the entry: a person's words first, then the evidence."""
    dates = [night.date for night in found.nights]
    days = f"{len(dates)} nights {dates[0]} to {dates[-1]}" if dates[1:] else f"1 night {dates[0]}"
    told = [f"{c.metric} {c.theta:+.2%}" for c in found.changes if _is_sure(c)]
    if (found.word == "new" and found.old) or found.why == CONFIRMED:
        told.append(found.why)
    evidence = f"{found.word}: {', '.join([*told, days])}"
    return f"{terms.reason}; {evidence}" if terms.reason.strip() else evidence


def markdown(proposal: Proposal) -> str:
    """Return the page: of each entry old, new, change, evidence and cause.

    Names and reasons are escaped, never markup.
    """
    return "\n".join(_lines(proposal)) + "\n"


def _lines(proposal: Proposal) -> Iterator[str]:
    found = proposal.findings
    proposed = [each for each in found if each.is_proposed]
    counts = Counter(each.word for each in found)
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    yield f"# Baseline proposal: {view.count(len(proposed), 'entry', 'entries')}"
    yield f"\n{told or 'No night says anything new'}. Nothing is committed: review it as git diff."
    for sku in sorted({each.sku for each in proposed}):
        yield f"\n## {in_markdown(sku)}\n"
        own = [each for each in proposed if each.sku == sku]
        yield from table(_COLUMNS, map(_row, own))
        yield ""
        yield from (_cause(each, proposal.before) for each in own)
    if waiting := [each for each in found if each.word in {"waiting", "undecided"}]:
        yield "\n## Not proposed\n"
        yield from table(_COLUMNS, map(_row, waiting))
    if proposal.broken:
        yield "\n## Nights that do not count\n"
        yield from table(("run", "why"), sorted(proposal.broken.items()))
    if proposal.earlier:
        newest = max((n.runs[-1].id for each in found for n in each.nights), default="")
        yield "\n## Not later than an entry, and no evidence of it\n"
        rows = [_earlier(run, ids, newest) for run, ids in proposal.earlier.items()]
        yield from table(("entries come from", "runs before it", "why"), rows)
    if proposal.left_out:
        yield "\n## Left out of nights that do\n"
        left_out = [(name, run, why) for (name, run), why in sorted(proposal.left_out.items())]
        yield from table(("variant", "run", "why"), left_out)


def _earlier(entry_run: str, runs: Sequence[str], newest: str) -> tuple[str, str, str]:
    """Return which runs began before an entry's, and what to think of it."""
    span = f"{runs[0]} to {runs[-1]}" if runs[1:] else runs[0]
    doubt = "" if newest > entry_run else ": if they are newer all the same, a clock was set back"
    return entry_run, f"{len(runs)}: {span}", f"by their clocks they began before it{doubt}"


def _row(found: Finding) -> tuple[str, ...]:
    known = [each for each in found.changes if each.threshold or each.theta]
    # The change that moved furthest, seen from its own threshold.
    change = max(known, key=lambda each: abs(each.theta) / (each.threshold or 1e-9), default=None)
    times = [night.entry.metrics.get("time_us") for night in found.nights]
    values = [(unit, row) for time in times if time for unit, row in time.values.items()]
    return (
        found.variant,
        time_of(found.old.entry) if found.old else "",
        time_of(found.entry),
        f"{change.metric} {view.percent(change.theta)}" if change else "",
        view.interval(change.low, change.high) if change else "",
        str(len(found.nights)),
        str(sum(len(row) for _, row in values)),
        str(len({unit for unit, _ in values})),
        f"{found.word}: {found.why}",
    )


def _cause(found: Finding, before: Mapping[str, RunFacts]) -> str:
    """Return the runs behind an entry, the commits between, and what the change is made of."""
    runs = [run for night in found.nights for run in night.runs]
    told = [f"from {', '.join(run.id for run in runs)}"]
    if found.old is not None:
        old, new = found.old.entry, found.nights[-1].entry
        facts = before.get(old.run)
        commits = facts.commit if facts else "", runs[0].commit
        if all(commits) and commits[0] != commits[1]:
            told.append(f"commits {view.commit(commits[0])}..{view.commit(commits[1])}")
        time = next((each for each in found.changes if each.metric == "time_us"), None)
        sides = (
            Side.of(old, facts.environment if facts else {}),
            Side.of(new, runs[-1].facts.environment),
        )
        told.append(explained_by(time, *sides))
    return f"- **{in_markdown(found.variant)}**: {in_markdown('; '.join(filter(None, told)))}"


def propose_command(  # noqa: PLR0913, PLR0917 - a command line
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help=f"Files or ids; else the newest {MOST_RUNS}"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="For the page; else it is said")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; stored before the evidence")] = "",
    nights: Annotated[int, typer.Option(min=1, help="So many make a level")] = 5,
    include_slower: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--include-slower", help="Worse levels too; needs --reason")
    ] = False,
    baselines: BaselinesOption = None,
) -> None:
    """Write what the last nights say to the baselines' files, for git diff; nothing is committed.

    A page in Markdown says of each entry what it was and will be, how sure that is, and why.
    """
    project = find_project()
    roots = project.baseline_folders(baselines)
    found = propose(
        [project.load_run(name) for name in runs] if runs else _newest(project),
        roots[0],
        exceptions=Exceptions.load(roots, datetime.now(UTC).date()),
        terms=Terms(by=user_name(), reason=reason, nights=nights, include_slower=include_slower),
    )
    page = markdown(found)
    if output:
        with refusing("cannot write the page", output, remedy="name a file that can be written"):
            say(f"wrote {replace_file(output, page.encode())}")
    else:
        say(page)
    for path in found.written:
        say(f"wrote {path}")


def _newest(project: Project) -> list[Run]:
    """Return the newest runs; one that cannot be read says so and is no night."""
    found = []
    known = list_runs(project.folder)
    if older := len(known[MOST_RUNS:]):
        say(f"not read: {older} runs that are older by their clocks; name those that are to count")
    for path in known[:MOST_RUNS]:
        try:
            found.append(load_run(path))
        except PerfError as error:
            say(f"not read: {' '.join(str(error).split())}")
    return found
