"""What the page says of a run as a whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perfsuite.model import Part
from perfsuite.report import facts, view
from perfsuite.report.book import Book
from perfsuite.report.rows import Row

# Above this many variants, quiet ones and what comes after so many are told in short: a browser has
# to hold the whole page.
FULL_DETAIL = 1000
MOST_OPEN = 6
# A browser lays out what is in sight, so many lines at a time.
CHUNK = 25
# What is told in the headline where nothing needs a reader.
QUIET = ("faster", "same", "new", "incomparable", "measured", "checked")


@dataclass(frozen=True, slots=True)
class Section:
    """One variant's section; not ``is_full`` where its row and two lines say enough."""

    row: Row
    is_full: bool
    is_open: bool


def sections(book: Book) -> list[Section]:
    """Return the section of each variant that ran."""
    many = is_lean(book)
    found = ((line, line.subject.mark) for line in book.rows)
    return [
        Section(
            line,
            not many or (index < FULL_DETAIL and not mark.is_quiet),
            mark.needs_reader and index < MOST_OPEN,
        )
        for index, (line, mark) in enumerate(found)
    ]


def is_lean(book: Book) -> bool:
    """Say whether the page has so many variants that quiet ones are told in short."""
    return len(book.rows) > FULL_DETAIL


def headline(book: Book) -> str:
    """Return the outcome of the run in one sentence, what needs a reader first."""
    counts, total = book.counts, len(book.rows)
    shift = "machine-shift; " if book.run.shift else ""
    broken = sum(claim.fails for claim in book.run.claims)
    failed = sum(count for mark, count in book.tallies if mark.tone == "fail")
    said = [
        (failed, "failed"),
        (counts["over-budget"], "over budget"),
        (counts["slower"], "slower"),
        (counts["disturbed"], "disturbed"),
        (counts["unclear"], "unclear"),
    ]
    parts = [f"{view.number(count, 0)} {word}" for count, word in said if count]
    first = f"{', '.join(parts)} of {view.count(total, 'variant')}" if parts else _quiet(counts)
    rest = [f"{view.count(broken, 'claim')} broken"] if broken else []
    excepted = sum(bool(each.verdict and each.verdict.excepted) for each in book.subjects)
    rest += [f"{excepted} excepted"] if excepted else []
    unrun = ("skipped", "not run", "left out")
    rest += [f"{view.number(counts[word], 0)} {word}" for word in unrun if counts[word]]
    return shift + "; ".join([*book.run.gaps, first, *([", ".join(rest)] if rest else [])])


def tone(book: Book) -> str:
    """Return the tone of the whole run."""
    if book.fails:
        return "slower"
    doubts = book.run.shift or book.counts["unclear"] or book.counts["disturbed"]
    if doubts or book.run.gaps or not book.run.finished:
        return "unclear"
    return "faster" if book.rows else "other"


def header(book: Book) -> tuple[facts.Fact, ...]:
    """Return what the run was, for the head of the page."""
    run, known = book.run, facts.everything(book.run.facts)
    before = view.commit(book.previous.commit) if book.previous else ""
    commit = view.commit(run.commit)
    return facts.present(
        (
            ("SKU", run.sku.slug),
            ("Device", run.facts.name),
            ("Driver", known.get("driver", "")),
            ("Commit", f"{commit} (before: {before})" if before and before != commit else commit),
            ("Started", view.moment(run.started)),
            ("Took", view.duration(run.wall_s) if run.wall_s else ""),
            ("Compared with", book.source or "nothing"),
            ("Shard", str(run.shard or "")),
            ("Shards", "; ".join(map(_part, run.parts))),
            ("Command", run.command),
        )
    )


def _part(part: Part) -> str:
    units = ", ".join(part.units) or part.facts.unit
    return f"{part.shard} on {units} in {view.duration(part.wall_s)}, run {part.run}"


def environment(book: Book) -> tuple[list[facts.Difference], list[facts.Difference]]:
    """Return what is known of the machine, now and before: what differs, and all else."""
    now = facts.everything(book.run.facts)
    if book.previous:
        before = facts.everything(book.previous.facts)
    else:
        states = [entry.state for entry in book.baselines.values()]
        seen = {name: {state[name] for state in states if name in state} for name in now}
        before = {name: ", ".join(sorted(values)) for name, values in seen.items() if values}
    found = facts.differences(before, now)
    return [one for one in found if one.is_changed], [one for one in found if not one.is_changed]


def _quiet(counts: Counter[str]) -> str:
    words = [word for word in QUIET if counts[word]]
    if not words:
        return "No variant ran"
    if words == ["same"]:
        return f"No change in {view.count(counts['same'], 'variant')}"
    if words == ["new"]:
        return f"{view.count(counts['new'], 'new variant')}, nothing to compare with yet"
    return ", ".join(f"{view.number(counts[word], 0)} {word}" for word in words)
