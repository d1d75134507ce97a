"""The whole page as flat values, so that templates only lay out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.model import ClaimVerdict, Run, Variant
from perfsuite.report import charts, facts, marks, view
from perfsuite.report.book import Book
from perfsuite.report.detail import Detail, detail, short
from perfsuite.report.rows import Row

# Above this many variants, quiet ones are told in short: a browser has to hold the whole page.
FULL_DETAIL = 1000
MOST_OPEN = 6
# What is told in the headline where nothing needs a reader.
QUIET = ("faster", "same", "new", "incomparable", "measured", "checked")


@dataclass(frozen=True, slots=True)
class Tally:
    """How many variants a word holds for."""

    mark: marks.Mark
    count: int


@dataclass(frozen=True, slots=True)
class Skips:
    """The variants that share one reason for not having been run."""

    reason: str
    variants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLine:
    """One claim with the ratio found and the ratio asked for."""

    claim: str
    mark: marks.Mark
    fails: bool
    ratio: str
    interval: str
    required: str
    reason: str
    source: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the page shows but the sections of the variants, which are made one by one."""

    run: Run
    headline: str
    tone: str
    fails: bool
    source: str
    header: tuple[facts.Fact, ...]
    tallies: tuple[Tally, ...]
    proportions: Markup
    packs: tuple[str, ...]
    rows: tuple[Row, ...]
    claims: tuple[ClaimLine, ...]
    skips: tuple[Skips, ...]
    environment: tuple[facts.Difference, ...]
    settings: tuple[facts.Fact, ...]
    costs: tuple[facts.Cost, ...]
    is_lean: bool


def page(book: Book) -> Page:
    """Return the page's values."""
    run = book.run
    rows = book.rows
    tallies = tuple(
        Tally(marks.mark(word), count)
        for word, count in sorted(book.counts.items(), key=lambda item: marks.mark(item[0]).rank)
    )
    return Page(
        run=run,
        headline=headline(book),
        tone=tone(book),
        fails=book.fails,
        source=book.source,
        header=header(book),
        tallies=tallies,
        proportions=charts.proportions([(tally.mark.tone, tally.count) for tally in tallies]),
        packs=tuple(sorted({line.pack for line in rows})),
        rows=rows,
        claims=claims(run.claims),
        skips=tuple(skips(book)),
        environment=environment(book),
        settings=facts.of_settings(run.settings),
        costs=facts.of_costs(run),
        is_lean=len(rows) > FULL_DETAIL,
    )


def details(book: Book) -> Iterator[Detail]:
    """Yield the section of each variant that ran, one at a time: ten thousand do not fit well."""
    many = len(book.rows) > FULL_DETAIL
    for index, (subject, line) in enumerate(zip(book.shown, book.rows, strict=True)):
        if many and subject.mark.is_quiet:
            yield short(subject, line)
        else:
            is_open = subject.mark.needs_reader and index < MOST_OPEN
            yield detail(subject, line, run=book.run, is_open=is_open)


def headline(book: Book) -> str:
    """Return the outcome of the run in one sentence, what needs a reader first."""
    counts, total = book.counts, len(book.shown)
    shift = "machine-shift; " if book.run.shift else ""
    broken = sum(claim.fails for claim in book.run.claims)
    failed = sum(count for word, count in counts.items() if marks.mark(word).tone == "fail")
    said = [
        (failed, "failed"),
        (counts["over-budget"], "over budget"),
        (counts["slower"], "slower"),
        (counts["unclear"] + counts["disturbed"], "unclear"),
    ]
    parts = [f"{view.number(count, 0)} {word}" for count, word in said if count]
    first = f"{', '.join(parts)} of {view.count(total, 'variant')}" if parts else _quiet(counts)
    rest = [f"{view.count(broken, 'claim')} broken"] if broken else []
    unrun = ("skipped", "not run")
    rest += [f"{view.number(counts[word], 0)} {word}" for word in unrun if counts[word]]
    return shift + "; ".join([first, ", ".join(rest)] if rest else [first])


def tone(book: Book) -> str:
    """Return the tone of the whole run."""
    if book.fails:
        return "slower"
    if (
        book.run.shift
        or book.counts["unclear"]
        or book.counts["disturbed"]
        or not book.run.finished
    ):
        return "unclear"
    return "faster" if book.shown else "other"


def header(book: Book) -> tuple[facts.Fact, ...]:
    """Return what the run was, for the head of the page."""
    run, known = book.run, facts.everything(book.run.facts)
    before = book.previous.commit[:12] if book.previous else ""
    commit = run.commit[:12]
    return facts.present(
        (
            ("SKU", run.sku.slug),
            ("Device", run.facts.name),
            ("Driver", known.get("driver", "")),
            ("Commit", f"{commit} (before: {before})" if before and before != commit else commit),
            ("Started", view.moment(run.started)),
            ("Took", view.duration(run.wall_s) if run.wall_s else ""),
            ("Compared with", book.source or "nothing"),
            ("Command", run.command),
        )
    )


def claims(verdicts: tuple[ClaimVerdict, ...]) -> tuple[ClaimLine, ...]:
    """Return the claims, those that need a reader first."""
    ordered = sorted(verdicts, key=lambda claim: (marks.mark(claim.word.value).rank, claim.claim))
    return tuple(
        ClaimLine(
            claim=claim.claim,
            mark=marks.mark(claim.word.value),
            fails=claim.fails,
            ratio=view.ratio(claim.ratio),
            interval=view.ratios(claim.low, claim.high),
            required=view.ratio(claim.required),
            reason=claim.reason,
            source=claim.source,
            href=view.href(claim.source),
        )
        for claim in ordered
    )


def skips(book: Book) -> Iterator[Skips]:
    """Yield each reason for not running with its variants, the commonest first."""
    groups: dict[str, list[Variant]] = {}
    for subject in book.subjects:
        if subject.is_skipped:
            groups.setdefault(subject.reason or "no reason given", []).append(subject.variant)
    for reason, variants in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Skips(reason, tuple(variant.id for variant in variants))


def environment(book: Book) -> tuple[facts.Difference, ...]:
    """Return what is known of the machine, with what it was before where that is known."""
    now = facts.everything(book.run.facts)
    if book.previous:
        before = facts.everything(book.previous.facts)
    else:
        states = [entry.state for entry in book.baselines.values()]
        seen = {name: {state[name] for state in states if name in state} for name in now}
        before = {name: ", ".join(sorted(values)) for name, values in seen.items() if values}
    found = facts.differences(before, now)
    return tuple(sorted(found, key=lambda difference: not difference.is_changed))


def _quiet(counts: Counter[str]) -> str:
    words = [word for word in QUIET if counts[word]]
    if not words:
        return "No variant ran"
    if words == ["same"]:
        return f"No change in {view.count(counts['same'], 'variant')}"
    if words == ["new"]:
        return f"{view.count(counts['new'], 'new variant')}, nothing to compare with yet"
    return ", ".join(f"{view.number(counts[word], 0)} {word}" for word in words)
