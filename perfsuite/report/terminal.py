"""What the terminal shows while a run goes on, and when it ends."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from perfsuite import boundary
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Result,
    Run,
    Status,
    Word,
)
from perfsuite.report import data as marks
from perfsuite.report import view
from perfsuite.report.data import Book, Subject, change_text
from perfsuite.report.text import properties
from perfsuite.report.view import profile_of
from perfsuite.report.why import cause, explained
from perfsuite.run.config import Options
from perfsuite.store.files import Closable

# Text in the characters and widths that every terminal and JUnit reader has.


ID_WIDTH = 36
_PLAIN = str.maketrans(
    {
        view.SPACE: " ",
        view.MINUS: "-",
        view.NOTHING: "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{MICRO SIGN}": "u",
    }
)
# A GitHub runner obeys lines that begin so, after blanks, and the second anywhere in a line. Also
# where we do not know of it: a container's output is printed by the job that started it.
_COMMAND = re.compile(r"^(\s*)(?=::)", re.MULTILINE)


def plain(text: str, *, most: int = boundary.TEXT_CHARACTERS) -> str:
    """Return text without the report's finer characters, and with nothing that who shows it obeys.

    That is a terminal, or a workflow of GitHub's that reads commands in what a job prints.
    """
    found = boundary.plain(text.translate(_PLAIN), most=most, instead="?")
    return _COMMAND.sub(r"\1| ", found).replace("##[", "# #[")


def shortened(variant: str) -> str:
    """Return an id cut in its middle, so that a line of progress keeps its length."""
    if len(variant) <= ID_WIDTH:
        return variant.ljust(ID_WIDTH)
    half = (ID_WIDTH - 1) // 2
    return f"{variant[:half]}~{variant[-half:]}"


# What each pytest item says: passed, skipped or failed, with everything needed to act on it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The report of one item; ``properties`` are JUnit's, of plain types."""

    fails: bool = False
    skipped: bool = False
    text: str = ""
    properties: tuple[tuple[str, str | float], ...] = ()


def accounts_of(book: Book, options: Options) -> Mapping[str, Account]:
    """Return the account of every variant and claim of a run, by id."""
    found = {each.variant.id: _of_variant(each, options) for each in book.subjects}
    verdicts = {verdict.claim: verdict for verdict in book.run.claims}
    for claim in book.run.instances:
        if claim.id in verdicts:
            found[claim.id] = _of_claim(claim, verdicts[claim.id], options)
    return found


def bare_accounts(run: Run, options: Options) -> Mapping[str, Account]:
    """Return what items say where their accounts cannot be made: the word and its reason alone."""
    failing = options.failing_statuses()
    told: list[tuple[str, str, str, bool, bool]] = [
        *(
            (r.variant, r.status, r.reason, r.status in failing, r.status == "ok")
            for r in run.asked
        ),
        *((v.variant, v.word, v.reason, v.fails, True) for v in run.verdicts),
        *((c.claim, c.word, c.reason, c.fails, c.word != "not-applicable") for c in run.claims),
    ]
    return {
        name: Account(
            fails=fails,
            skipped=not (fails or has_word),
            text=f"{word}: {name}\n{_line('reason', reason)}" if fails else plain(reason),
        )
        for name, word, reason, fails, has_word in told
    }


def _word(subject: Subject) -> Word | None:
    return subject.verdict.word if subject.verdict else None


def _fails(subject: Subject, statuses: AbstractSet[str]) -> bool:
    if subject.verdict:
        return subject.verdict.fails
    return subject.result is not None and subject.result.status in statuses


def _of_variant(subject: Subject, options: Options) -> Account:
    fails = _fails(subject, options.failing_statuses())
    ended_ok = subject.result is not None and subject.result.status is Status.OK
    skipped = not fails and not ended_ok
    return Account(
        fails=fails,
        skipped=skipped,
        text=plain(subject.reason) if skipped else "\n".join(_told(subject, options)),
        properties=tuple(properties(subject.result, subject.verdict)),
    )


def _told(subject: Subject, options: Options) -> Iterator[str]:
    """Yield the lines of a variant's failure."""
    change, source = subject.telling, subject.verdict.source if subject.verdict else ""
    # pytest's own summary shows the beginning of this line, beside the id.
    moved = f" {plain(change_text(change))}" if change else ""
    yield f"{subject.mark.word}{moved}: {subject.variant.id}"
    if change:
        yield _line("metric", change.metric)
        yield _line("baseline", f"{view.amount(change.baseline, change.unit)} ({source})")
        yield _line("measured", view.amount(change.current, change.unit))
        interval = view.interval(change.low, change.high)
        yield _line("change", f"{change_text(change)}, interval {interval}")
        limits = (view.share(change.threshold), view.share(change.gate))
        yield _line("limits", f"threshold {limits[0]}, gate {limits[1]}")
    if _word(subject) is Word.OVER_BUDGET:
        for budget in subject.variant.case.budgets:
            most = view.budget(budget.metric, budget.most)
            yield _line("budget", f"{budget.metric} at most {most}: {budget.reason}")
    yield _line("reason", subject.reason)
    if why := explained(subject):
        yield _line("why", why)
    if subject.result and subject.result.output.strip():
        yield _line("output", subject.result.output.strip())
    yield _line("again", view.command(subject.variant.id, *options.again(subject.variant)))


def _of_claim(claim: ClaimInstance, verdict: ClaimVerdict, options: Options) -> Account:
    lines = [
        f"{verdict.word.value}: {claim.id}",
        _line("asked for", f"{view.ratio(verdict.required)} ({verdict.source})"),
        *_found(verdict),
        _line("less" if claim.metric else "faster", claim.faster),
        _line("than", claim.than),
        _line("reason", verdict.reason),
        _line("again", claim_command(claim, options)),
    ]
    skipped = verdict.word is ClaimWord.NOT_APPLICABLE
    told: list[tuple[str, str | float]] = [
        ("perf_claim", verdict.word.value),
        ("perf_reason", verdict.reason),
        ("perf_ratio_required", verdict.required),
    ]
    if verdict.ratio is not None:
        told.append(("perf_ratio", verdict.ratio))
    return Account(
        fails=verdict.fails,
        skipped=skipped,
        text=plain(verdict.reason) if skipped else "\n".join(map(plain, lines)),
        properties=tuple(told),
    )


def _found(verdict: ClaimVerdict) -> Iterator[str]:
    if verdict.ratio is not None:
        span = f" ({view.ratios(verdict.low, verdict.high)})" if verdict.low != verdict.high else ""
        yield _line("found", f"{view.ratio(verdict.ratio)}{span}")


def claim_command(claim: ClaimInstance, options: Options) -> str:
    """Return the command that measures a claim's two variants again."""
    given = ("--perf-tier", options.tier) if options.tier != "smoke" else ()
    return " ".join(("pytest", "--perf", *given, "-k", f"'{claim.name} and {claim.pack}'"))


def _line(name: str, text: str) -> str:
    first, *rest = plain(text).splitlines() or [""]
    return "\n".join((f"  {name:<9} {first}", *(f"  {'':<9} {line}" for line in rest)))


# The table that --perf-profile asks for: what the run itself cost.


# A smaller share of the time says nothing.
LEAST_SHARE = 1e-3


def costs(run: Run, report_s: float) -> Iterator[str]:
    """Yield what a run cost: its phases, the device's share, the slowest variants."""
    profile = profile_of(run, report_s=report_s)
    devices = view.count(profile.devices, "device")
    yield plain(f"profile: {view.duration(profile.wall_s)} on {devices}")
    for phase in profile.phases:
        seconds = view.number(phase.seconds, 2)
        share = "" if phase.share < LEAST_SHARE else view.share(phase.share)
        yield plain(f"  {phase.name:<10} {seconds:>10} s {share:>9}  {phase.meaning}".rstrip())
    busy, spin = view.share(profile.busy), view.share(profile.spin)
    yield plain(f"  device busy with samples {busy} of the time, pacing them {spin}")
    for variant, wall_s in profile.slowest:
        yield plain(f"  {view.duration(wall_s):>12}  {variant}")


# The summary of a run on a terminal: the counts, what needs a reader, doubts, skips and notes.


ALWAYS_COUNTED = ("unclear", "skipped")
OTHERS = frozenset({"faster", "incomparable"})
MOST, MOST_SKIPS = 10, 5
MOST_CHARACTERS = 300
INDENT = " " * 6


def summary(book: Book) -> Iterator[str]:
    """Yield the counts, the items that need a reader most, reasons of skips, and notes."""
    yield first_line(book)
    if book.run.shift:
        yield _cut(f"machine-shift: {book.run.shift.reason}")
    if book.source:
        yield _cut(f"compared with {book.source}")
    urgent = [one for one in book.subjects if one.mark.needs_reader]
    quiet = [one for one in book.subjects if one.mark.tone == "unclear"]
    quiet += [one for one in book.subjects if one.mark.word in OTHERS]
    items: list[Subject | ClaimVerdict] = [*urgent, *book.broken, *quiet]
    for item in items[:MOST]:
        yield from _claim(item) if isinstance(item, ClaimVerdict) else _told_summary(item)
    if more := items[MOST:]:
        yield f"  ... and {len(more)} more: see the report"
    yield from skip_lines(book)
    yield from _first(book.run.notes)


def first_line(book: Book) -> str:
    """Return how many variants each word holds for; skipped and unclear always."""
    counts = {**dict.fromkeys(ALWAYS_COUNTED, 0), **book.counts}
    ordered = sorted(counts.items(), key=lambda item: marks.mark(item[0]).rank)
    tally = ", ".join(f"{count} {word}" for word, count in ordered)
    total = plain(view.count(len(book.subjects), "variant"))
    return plain(f"{total} on {book.run.facts.name or book.run.sku.slug}: {tally}")


def skip_lines(book: Book) -> list[str]:
    """Return how many variants were skipped for each of the commonest reasons."""
    told = [_cut(f"{word} {len(ids)}: {why}") for word, why, ids in book.skips[:MOST_SKIPS]]
    more = len(book.skips) - MOST_SKIPS
    return [*told, f"skipped for {more} more reasons: see the report"] if more > 0 else told


def _first(notes: Sequence[str]) -> Iterator[str]:
    yield from (_cut(f"note: {note}") for note in notes[:MOST])
    if more := notes[MOST:]:
        yield f"note: {len(more)} more: see the report"


def _cut(text: str) -> str:
    return textwrap.shorten(plain(text), MOST_CHARACTERS, placeholder=" ...")


def _told_summary(subject: Subject) -> Iterator[str]:
    """Yield the line of one variant and its cause, the id last: a long one harms nothing."""
    change, why = subject.telling, _cut(cause(subject))
    start, name = f"  {subject.mark.word:<12}", subject.variant.id
    if change is None or subject.mark.tone == "unclear":
        yield plain(f"{start} {name}{': ' if why else ''}{why}")
        return
    interval = f"({view.interval(change.low, change.high)})"
    yield plain(f"{start} {change_text(change):>8} {interval:<20} {name}")
    if why:
        yield f"{INDENT}{why}"


def _claim(claim: ClaimVerdict) -> Iterator[str]:
    found = f"{view.ratio(claim.ratio)} found, {view.ratio(claim.required)} asked for"
    yield plain(f"  {claim.word:<12} {found}  {claim.claim}")
    yield f"{INDENT}{_cut(claim.reason)}"


# Live progress: a bar on a terminal, else a line now and then.


# Without a terminal a quiet variant needs no line of its own.
QUIET_S = 10.0
MOST_PHASE = 20


class Ticker(Closable):
    """Tells of a run while it goes on: a bar on a terminal, else a line now and then.

    It ``has_begun`` to measure, and ``has_result`` of at least one variant.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._last = time.monotonic()
        self._task: TaskID | None = None
        self.has_begun = self.has_result = False
        # Redrawn on events only: a thread that draws would disturb what is measured on the CPU.
        self._bar = Progress(
            # Ids have brackets, which are no markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
            auto_refresh=False,
            transient=True,
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._bar.stop()

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        """Say what is about to run."""
        self.has_begun = True
        about = f", about {view.duration(estimate_s)}" if estimate_s else ""
        self._say(f"perfsuite: {view.count(total, 'variant')} on {facts.name}{about}")
        if self._bar.console.is_terminal:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=total)

    def phase(self, variant: str, phase: str) -> None:
        """Show what is going on right now."""
        if self._task is not None:
            # A worker tells of its phase itself: it may be any text.
            told = f"{plain(phase)[:MOST_PHASE]:<8} {shortened(plain(variant))}"
            self._bar.update(self._task, description=told)
            self._bar.refresh()

    def finished(self, result: Result, done: int, total: int) -> None:
        """Tell of a variant that has ended; of one that ended badly at once."""
        self.has_result = True
        bad = result.status not in {Status.OK, Status.SKIPPED}
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
            self._bar.refresh()
        due = done == total or time.monotonic() - self._last > QUIET_S
        if bad or (self._task is None and due):
            self._last = time.monotonic()
            self._say(f"[{done}/{total}] {result.variant}: {result.status.value}")

    def note(self, text: str) -> None:
        """Tell what the run has to say about itself."""
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        line = plain(text)
        if self._task is None:
            self._write(line)
        else:
            self._bar.console.print(line, markup=False, highlight=False)
