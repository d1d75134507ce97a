"""One run judged against another, and what a folder of baselines holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from perfsuite.baselines import Baselines, Exceptions
from perfsuite.baselines.folder import packs_in, read_sku, sku_folder, skus_in
from perfsuite.cli.project import say, say_table
from perfsuite.errors import UsageError
from perfsuite.judge import Against, Policy, judge
from perfsuite.model import BaselineEntry, BaselineMetric, Run, Sku, Variant
from perfsuite.report import view
from perfsuite.report.book import Book, read
from perfsuite.runs import entries_of
from perfsuite.sku import fingerprint_differs, sku_for
from perfsuite.terminal import first_line, skip_lines
from perfsuite.terminal.words import plain


def judged_against(run: Run, before: Run) -> Book:
    """Return ``run`` with the verdicts it gets when ``before`` is its baseline."""
    source = f"run {before.id}"
    mismatches = {variant.id: _mismatch(run, before, variant) for variant in run.variants}
    mismatches = {name: why for name, why in mismatches.items() if why}
    entries = entries_of(before)
    # Results come in the order they were measured: a confirmation replaces its screen.
    last = {result.variant: result for result in run.asked}
    verdicts = judge(
        last,
        variants=run.variants,
        entries=entries,
        against=Against(
            facts=run.facts,
            slug=run.sku.slug,
            policy=Policy(),
            source=source,
            mismatches=mismatches,
        ),
    )
    judged = replace(run, verdicts=verdicts, claims=())
    return read(judged, baselines=entries, source=source, previous=before)


def _mismatch(run: Run, before: Run, variant: Variant) -> str:
    """Say why one variant's results of two runs may not be compared, or ""."""
    now, then = (sku_for(variant, each.facts, own=each.sku) for each in (run, before))
    if now.slug != then.slug:
        return f"{then.slug} is another product than {now.slug}"
    return fingerprint_differs(now, then.facts)


def say_book(book: Book) -> None:
    """Say each variant's verdict, what needs a reader first, and how many were skipped."""
    rows = []
    for row in book.rows:
        subject = row.subject
        moved = row.change if subject.change or row.metric else ""
        told = (moved, row.interval, subject.variant.id, subject.reason)
        rows.append((subject.mark.word, *told))
    columns = ("verdict", "change", "interval", "variant", "reason")
    say_table(f"{book.run.id} against {book.source}", columns, rows)
    for line in (*skip_lines(book), first_line(book)):
        say(line)


def say_skus(root: Path) -> None:
    """Say which products have baselines."""
    folders = [root / slug for slug in skus_in(root)]
    if not folders:
        say(f"no baselines in {root}; perfsuite baseline accept RUN makes them")
        return
    rows = []
    for folder in folders:
        baselines = Baselines.load([root], read_sku(folder))
        packs = ", ".join(packs_in(folder))
        rows.append((folder.name, baselines.sku.name, packs, str(len(baselines.stored))))
    say_table(f"Baselines in {root}", ("SKU", "product", "packs", "variants"), rows)


def say_entries(roots: Sequence[Path], slug: str, today: date) -> None:
    """Say what is accepted for a product, by whom, why and how long ago, and what is excepted."""
    sku = _known_sku(roots, slug)
    baselines = Baselines.load(roots, sku)
    rows = [
        (
            variant,
            *_estimate(stored.entry),
            f"{stored.accepted.when.partition('T')[0]} by {stored.accepted.by}",
            stored.accepted.reason,
        )
        for variant, stored in sorted(baselines.stored.items())
    ]
    columns = ("variant", "time", "sd between", "processes", "units", "accepted", "reason")
    say_table(f"{sku.name} ({slug})", columns, rows)
    for rule in Exceptions.load(roots, today).rules:
        if fnmatchcase(slug, rule.entry.sku or "*"):
            over = "" if rule.acts(today) else " (expired: it acts no more)"
            say(f"{rule.entry.select}: {rule.excepted}{over}")


def say_entry(roots: Sequence[Path], slug: str, variant: str) -> None:
    """Say all that is kept of one entry, and of the run that it comes from."""
    baselines = Baselines.load(roots, _known_sku(roots, slug))
    stored = baselines.stored.get(variant)
    if stored is None:
        raise UsageError(
            f"{slug} has no entry of {variant!r}",
            where=_named(roots),
            remedy=f"perfsuite baseline show {slug} lists them",
        )
    entry, accepted, run = stored.entry, stored.accepted, baselines.runs.get(stored.entry.run)
    columns = ("metric", "centre", "sd within", "sd between", "card", "processes")
    rows = [
        (name, f"{m.center:.6g} {m.unit}", view.spread(m.within), view.spread(m.between), *each)
        for name, m in sorted(entry.metrics.items())
        for each in _by_card(m) or [("", "exact")]
    ]
    say_table(f"{variant} on {slug}", columns, rows)
    say(f"accepted {accepted.when} by {accepted.by}: {accepted.reason}")
    state = ", ".join(f"{key} {value}" for key, value in sorted(entry.state.items()))
    say(f"{entry.regime}, version {entry.case_version} of its case; {state or 'no state'}")
    commit = f" of commit {run.commit}" if run and run.commit else ""
    say(f"from run {entry.run}{commit}")
    for key, value in sorted(run.environment.items()) if run else ():
        say(f"  {key} {value}")


def _by_card(metric: BaselineMetric) -> list[tuple[str, str]]:
    return [(unit, " ".join(f"{v:.6g}" for v in row)) for unit, row in metric.values.items()]


def _named(roots: Sequence[Path]) -> str:
    return ", ".join(map(str, roots))


def _known_sku(roots: Sequence[Path], slug: str) -> Sku:
    known = {name: root for root in roots[::-1] for name in skus_in(root)}
    if slug not in known:
        raise UsageError(
            f"there is no baseline for the SKU {slug!r}",
            where=_named(roots),
            remedy=f"choose one of {', '.join(sorted(known))}" if known else "accept a run first",
        )
    return read_sku(sku_folder(known[slug], slug))


def time_of(entry: BaselineEntry) -> str:
    """Return an entry's time to the digits that its noise supports; nothing if it has none."""
    return _estimate(entry)[0]


def _estimate(entry: BaselineEntry) -> tuple[str, str, str, str]:
    metric = entry.metrics.get("time_us")
    if metric is None:  # a variant with exact metrics only
        return "", "", "", ""
    return (
        plain(view.time(metric.center, metric.between)),
        plain(view.spread(metric.between)),
        str(sum(map(len, metric.values.values()))),
        str(len(metric.values)),
    )
