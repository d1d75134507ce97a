"""Proposes what baselines should say after several nights: a change to review, never a commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import jinja2
import typer
from msgspec import Struct
from msgspec.structs import replace

from perfsuite.boundary import PerfError, UsageError, user_name
from perfsuite.judge.compare import Grounds, is_one_level, level_changes
from perfsuite.judge.machine import judge_machine
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    BaselineEntry,
    Change,
    Confirmation,
    Expected,
    Run,
    Stage,
    Status,
    Variant,
    VariantRun,
    Verdict,
    Word,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report import view
from perfsuite.report.data import Side, explained_by
from perfsuite.report.files import in_markdown
from perfsuite.run.accept import acceptance_of
from perfsuite.run.project import (
    BaselinesOption,
    find_project,
    say,
    stored_run,
    time_of,
    with_baselines,
)
from perfsuite.store.baselines import (
    Baselines,
    RunFacts,
    StoredEntry,
    baseline_text,
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


class Terms(Struct, frozen=True, kw_only=True):
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


class Night(Struct, frozen=True):
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
    nights: Sequence[Night]
    changes: tuple[Change, ...] = ()

    @property
    def is_proposed(self) -> bool:
        """Say whether the entry is written."""
        return self.word in {"new", "faster", "slower"}

    @property
    def leading(self) -> Change | None:
        """The change that moved furthest, seen from its own threshold."""
        known = [each for each in self.changes if each.threshold or each.theta]
        return max(known, key=lambda each: abs(each.theta) / (each.threshold or 1e-9), default=None)

    @property
    def times(self) -> list[tuple[str, float]]:
        """The processes' times by card."""
        found = [night.entry.metrics.get("time_us") for night in self.nights]
        values = [(unit, row) for time in found if time for unit, row in time.values.items()]
        return [(unit, value) for unit, row in values for value in row]

    def origin(self, before: Mapping[str, RunFacts]) -> str:
        """Say the runs behind an entry, the commits between, and what the change is made of."""
        runs = [run for night in self.nights for run in night.runs]
        told = [f"from {', '.join(run.id for run in runs)}"]
        if self.old is not None:
            old, new = self.old.entry, self.nights[-1].entry
            facts = before.get(old.run)
            was, now = facts.commit if facts else "", runs[0].commit
            if was and now and was != now:
                told.append(f"commits {view.commit(was)}..{view.commit(now)}")
            time = next((each for each in self.changes if each.metric == "time_us"), None)
            then = Side.of(old, facts.environment if facts else {})
            told.append(explained_by(time, then, Side.of(new, runs[-1].facts.environment)))
        return "; ".join(filter(None, told))


class Proposal(Struct, frozen=True, kw_only=True):
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``earlier`` has the runs that say nothing
    of entries, for they began before the run those come from, by that run. ``before`` are the runs
    that entries come from.
    """

    findings: Sequence[Finding]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    earlier: Mapping[str, Sequence[str]]
    written: Sequence[Path]
    before: Mapping[str, RunFacts]

    @property
    def newest(self) -> str:
        """The newest run that says anything."""
        return max((night.runs[-1].id for f in self.findings for night in f.nights), default="")


class _Product(Struct, frozen=True):
    """One SKU: its entries, and how nights are compared with them."""

    baselines: Baselines
    grounds: Grounds


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
    products = _products(runs, root)
    broken = _refused(runs, products, exceptions)
    left_out: dict[tuple[str, str], str] = {}
    earlier: dict[str, set[str]] = {}
    seen: dict[tuple[str, str], list[tuple[Run, Variant, BaselineEntry]]] = {}
    for run in (each for each in runs if each.id not in broken):
        for variant, product, entry, why in _said(run, products, exceptions):
            old = product.baselines.stored.get(variant.id)
            since = old.entry.run if old else ""
            if why:
                left_out[variant.id, run.id] = why
            elif entry and run.id > since:
                key = product.baselines.sku.slug, variant.id
                seen.setdefault(key, []).append((run, variant, entry))
            elif entry and run.id < since:
                earlier.setdefault(since, set()).add(run.id)
    findings = [
        _finding(_nights(rows), products[slug], terms) for (slug, _), rows in sorted(seen.items())
    ]
    written: list[Path] = []
    for slug, product in sorted(products.items()):
        if own := [each for each in findings if each.sku == slug and each.is_proposed]:
            written += _write(own, product, root, terms)
    return Proposal(
        findings=findings,
        broken=broken,
        left_out=left_out,
        earlier={since: sorted(ids) for since, ids in sorted(earlier.items())},
        written=written,
        before={k: v for each in products.values() for k, v in each.baselines.runs.items()},
    )


def _products(runs: Sequence[Run], root: Path) -> dict[str, _Product]:
    """Return the SKUs that runs measured; gangs and compilation targets have their own.

    The folder says which product a SKU is, if there is one.
    """
    found = {}
    for run in runs:
        for sku in (
            run.sku,
            *(sku_for(one.variant, run.facts, own=run.sku) for one in run.variants),
        ):
            found[sku.slug] = run, sku
    products = {}
    for slug, (run, sku) in found.items():
        folder = sku_folder(root, slug)
        baselines = Baselines.load([root], read_sku(folder) if has_sku(folder) else sku)
        known = tuple(baselines.entries.values())
        variants = [one.variant for one in run.variants]
        grounds = Grounds(facts=run.facts, slug=slug).learned(known, variants)
        products[slug] = _Product(baselines, grounds)
    return products


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
    found = {}
    for run in runs:
        why = held.get(run.id) or _broken(run, products[run.sku.slug], exceptions)
        if why:
            found[run.id] = why
    return found


def _broken(run: Run, product: _Product, exceptions: Exceptions) -> str:
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
    for result in run.results:
        if result.stage.is_canary and result.status not in {Status.OK, Status.SKIPPED}:
            return f"canary {result.variant} {result.status}"
    away = exceptions.quarantined(run)
    baselines = product.baselines
    canaries = [
        replace(
            one,
            expected=Expected(
                entry=baselines.entry(one.id), source=f"baseline {baselines.sku.slug}"
            ),
        )
        for one in run.canaries
        if one.id not in away
    ]
    quiet = replace(run, canaries=tuple(canaries))
    grounds = dataclasses.replace(product.grounds, facts=run.facts)
    return view.told(judge_machine(quiet, (), grounds).notes)


def _said(
    run: Run, products: Mapping[str, _Product], exceptions: Exceptions
) -> Iterator[tuple[Variant, _Product, BaselineEntry | None, str]]:
    """Yield what a run measured of each variant, and why that is no evidence, if it is none."""
    away = exceptions.quarantined(run)
    lasts = [one.last for one in run.variants]
    # Of what was confirmed the screen was chosen for its time.
    entries = entries_of(run, [last for last in lasts if last])
    for one, last in zip(run.variants, lasts, strict=True):
        if last is None or last.status is Status.SKIPPED:
            continue
        sku = sku_for(one.variant, run.facts, own=run.sku)
        product, screen = products[sku.slug], one.result(Stage.SCREEN)
        failed = [each for each in (screen, last) if each and each.status is not Status.OK]
        why = fingerprint_differs(sku, product.baselines.sku.facts)
        if one.id in away:
            why = str(away[one.id].excepted)
        elif failed and not why:
            why = f"{failed[0].status}: {failed[0].reason}".rstrip(": ")
        elif not why:
            why = _no_level(one)
        yield one.variant, product, entries.get(one.id), why


def _no_level(one: VariantRun) -> str:
    """Say why what was measured of a variant tells no level, or nothing."""
    verdict = one.verdict
    if verdict is None:
        return "it was not judged"
    if not verdict.word.is_level:
        return f"{verdict.word}: {verdict.reason}"
    is_fresh = one.result(Stage.CONFIRM) is not None
    if verdict.confirmation is Confirmation.IN_TURNS and not is_fresh:
        return "decided in turns: its screen was chosen for its time"
    return ""


def _nights(rows: Iterable[tuple[Run, Variant, BaselineEntry]]) -> list[Night]:
    """Return a variant's nights, oldest first; runs of one date are one night."""
    dates: dict[str, list[tuple[Run, Variant, BaselineEntry]]] = {}
    for row in rows:
        dates.setdefault(row[0].started.partition("T")[0], []).append(row)
    found = []
    for date, same in sorted(dates.items()):
        run, variant, last = same[-1]
        alike = [(each, entry) for each, _, entry in same if not other_kind(entry, last)]
        runs, entries = zip(*alike, strict=True)
        verdict = next(each for each in run.verdicts if each.variant == variant.id)
        found.append(Night(date, runs, variant, pooled_entry(entries), verdict))
    return found


def _finding(nights: Sequence[Night], product: _Product, terms: Terms) -> Finding:
    """Say what becomes of an entry after a variant's nights since its run, oldest first."""
    # The last nights that no verdict would tell from each other.
    *earlier, last = nights[-MOST_NIGHTS:]
    level = [last]
    for night in reversed(earlier):
        entries = [each.entry for each in level]
        if other_kind(night.entry, last.entry) or not is_one_level(
            last.variant, night.entry, entries, product.grounds
        ):
            break
        level.insert(0, night)
    entries = [night.entry for night in level]
    old = product.baselines.stored.get(last.variant.id)
    found = Finding(
        sku=product.baselines.sku.slug,
        variant=last.variant.id,
        word="new",
        why="it has no entry",
        old=old,
        entry=pooled_entry(entries),
        nights=level,
    )
    if old is None:
        return found
    if why := blocked_by(old.entry.state, last.runs[-1].facts):
        return replace(found, word="undecided", why=f"not comparable: {why}")
    # Other work has another time, which says nothing of the old one.
    if (was := old.entry.case_version) != (version := last.entry.case_version):
        return replace(found, why=f"case version was {was} and is {version}")
    changes = level_changes(last.variant, old.entry, entries, product.grounds)
    found = replace(found, changes=changes)
    if stay := _stay(changes, old.entry, entries):
        # Metrics that came or went are recorded where nothing else moves with them.
        kind = other_kind(replace(old.entry, state=found.entry.state), found.entry)
        word, why = ("new", kind) if kind and stay[0] == "same" else stay
        return replace(found, word=word, why=why)
    return _moved(found, old.entry, terms)


def _moved(found: Finding, old: BaselineEntry, terms: Terms) -> Finding:
    """Say where a level moved to, and whether that is known and meant well enough."""
    moved = [each for each in found.changes if _is_sure(each)]
    is_other_code = any(abs(each.theta) > each.threshold for each in moved)
    word = "slower" if any(each.theta > 0 for each in moved) else "faster"
    entry = merge(old, found.entry, is_other_code=is_other_code).entry
    verdict, nights = found.nights[-1].verdict, len(found.nights)
    found = replace(found, entry=entry, word=word, why=f"{nights} nights")
    exact = any(change.theta < 0 and not change.degrees for change in verdict.changes)
    # A faster level that was confirmed needs no second night.
    if word == verdict.word == Word.FASTER and (verdict.confirmation or exact):
        return replace(found, why=CONFIRMED)
    if nights < terms.nights:
        return replace(found, word="waiting", why=f"{word}: {nights} of {terms.nights} nights")
    if word == "slower" and not terms.include_slower:
        return replace(found, word="waiting", why=f"{word}: a person has to include it")
    return found


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


def _write(
    proposed: Sequence[Finding], product: _Product, root: Path, terms: Terms
) -> tuple[Path, ...]:
    """Write what is proposed for a SKU, a file a pack."""
    sku = product.baselines.sku
    folder = sku_folder(root, sku.slug)
    files: dict[Path, bytes] = {}
    with locked(folder):
        for pack, own in groupby(proposed, key=lambda each: each.variant.partition(".")[0]):
            stored = read_pack(folder, pack)
            for each in own:
                accepted = acceptance_of(_reason(each, terms), terms.by)
                stored[each.variant] = StoredEntry(entry=each.entry, accepted=accepted)
            files[pack_path(folder, pack)] = baseline_text(sku.slug, pack, stored)
        runs = {each.nights[-1].runs[-1].id: each.nights[-1].runs[-1] for each in proposed}
        return write_files(list(runs.values()), sku, folder, files)


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
    pages = jinja2.Environment(  # noqa: S701 - Markdown: each cell is escaped
        loader=jinja2.PackageLoader("perfsuite.nightly"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["cell"] = lambda cell: in_markdown(str(cell))
    pages.globals |= {"view": view, "time_of": time_of}
    return pages.get_template("proposal.md.j2").render(found=proposal) + "\n"


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
    project = with_baselines(find_project(), baselines)
    roots = project.baselines
    named = [stored_run(project, name) for name in runs or ()]
    known = [] if runs else list_runs(project.folder)
    if older := len(known[MOST_RUNS:]):
        say(f"not read: {older} runs that are older by their clocks; name those that are to count")
    for path in known[:MOST_RUNS]:
        try:
            named.append(load_run(path))
        except PerfError as error:  # it is no night
            say(f"not read: {' '.join(str(error).split())}")
    found = propose(
        named,
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
