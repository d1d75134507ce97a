"""What the terminal shows while a run goes on, and when it ends."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from perfsuite.report import view
from perfsuite.report.data import RunView, VariantView, skips
from perfsuite.report.text import Property, properties
from perfsuite.store.files import Closable

if TYPE_CHECKING:
    from perfsuite.run.config import Options

# A GitHub runner obeys lines that begin so, after blanks, and the second anywhere in a line. Also
# where we do not know of it: a container's output is printed by the job that started it.
_COMMAND = re.compile(r"^(\s*)(?=::)", re.MULTILINE)
ALWAYS_COUNTED = ("unclear", "skipped")
MOST, MOST_SKIPS, MOST_CHARACTERS = 10, 5, 300
INDENT = " " * 6
ID_WIDTH, PHASE_WIDTH = 36, 20
# Without a terminal a quiet variant needs no line of its own.
QUIET_S = 10.0


def plain(text: str, *, most: int = boundary.TEXT_CHARACTERS) -> str:
    """Return text without the report's finer characters, and with nothing that who shows it obeys.

    That is a terminal, or a workflow of GitHub's that reads commands in what a job prints.
    """
    found = boundary.plain(text.translate(view.PLAIN), most=most, instead="?")
    return _COMMAND.sub(r"\1| ", found).replace("##[", "# #[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one pytest item reports; ``properties`` are JUnit's, of plain types."""

    fails: bool = False
    skipped: bool = False
    text: str = ""
    properties: tuple[Property, ...] = ()


def accounts_of(book: RunView, options: Options) -> Mapping[str, Account]:
    """Return the account of every variant and claim of a run, by id."""
    failing = options.failing_statuses()
    found = {}
    for one in book.variants:
        status = one.last.status if one.last else None
        fails = one.verdict.fails if one.verdict else status in failing
        skipped = not fails and status is not Status.OK
        found[one.variant.id] = Account(
            fails=fails,
            skipped=skipped,
            text=plain(one.reason) if skipped else _told(one, options),
            properties=tuple(properties(one.last, one.verdict)),
        )
    for claim in book.claims:
        if claim.instance:
            found[claim.instance.id] = _of_claim(claim.instance, claim.verdict, options)
    return found


def bare_accounts(run: Run, options: Options) -> Mapping[str, Account]:
    """Return what items say where their accounts cannot be made: the word and its reason alone."""
    failing = options.failing_statuses()
    told: list[tuple[str, str, str, bool, bool]] = [
        (r.variant, r.status, r.reason, r.status in failing, r.status == "ok") for r in run.asked
    ]
    told += [(v.variant, v.word, v.reason, v.fails, True) for v in run.verdicts]
    told += [(c.claim, c.word, c.reason, c.fails, c.word != "not-applicable") for c in run.claims]
    return {
        name: Account(
            fails=fails,
            skipped=not (fails or has_word),
            text=_lines(f"{word}: {name}", {"reason": reason}) if fails else plain(reason),
        )
        for name, word, reason, fails, has_word in told
    }


def _told(one: VariantView, options: Options) -> str:
    """Return the text of a variant's failure: everything needed to act on it."""
    change, verdict, told = one.telling, one.verdict, dict[str, str]()
    # pytest's own summary shows the beginning of this line, beside the id.
    moved = f" {view.change(change)}" if change else ""
    if change and verdict:
        interval = view.interval(change.low, change.high)
        told = {
            "metric": change.metric,
            "baseline": f"{view.amount(change.baseline, change.unit)} ({verdict.source})",
            "measured": view.amount(change.current, change.unit),
            "change": f"{view.change(change)}, interval {interval}",
            "limits": f"threshold {view.share(change.threshold)}, gate {view.share(change.gate)}",
        }
    if verdict and verdict.word is Word.OVER_BUDGET:
        for budget in one.variant.case.budgets:
            most = view.amount(budget.most, view.unit_of(budget.metric))
            limit = f"{budget.metric} at most {most}: {budget.reason}"
            told["budget"] = "\n".join(filter(None, (told.get("budget"), limit)))
    told |= {"reason": one.reason or "-", "why": one.explained}
    told["output"] = one.last.output.strip() if one.last else ""
    told["again"] = view.command(one.variant.id, *options.again(one.variant))
    return _lines(f"{one.mark.word}{moved}: {one.variant.id}", told)


def _of_claim(claim: ClaimInstance, verdict: ClaimVerdict, options: Options) -> Account:
    tier = f"--perf-tier {options.tier} " if options.tier != "smoke" else ""
    properties: list[Property] = [("perf_claim", verdict.word.value)]
    properties += [("perf_reason", verdict.reason), ("perf_ratio_required", verdict.required)]
    found = ""
    if verdict.ratio is not None:
        properties.append(("perf_ratio", verdict.ratio))
        span = f" ({view.ratio(verdict.low)} to {view.ratio(verdict.high)})"
        found = f"{view.ratio(verdict.ratio)}{span if verdict.low != verdict.high else ''}"
    told = {
        "asked for": f"{view.ratio(verdict.required)} ({verdict.source})",
        "found": found,
        "less" if claim.metric else "faster": claim.faster,
        "than": claim.than,
        "reason": verdict.reason,
        "again": f"pytest --perf {tier}-k '{claim.name} and {claim.pack}'",
    }
    skipped = verdict.word is ClaimWord.NOT_APPLICABLE
    text = plain(verdict.reason) if skipped else _lines(f"{verdict.word.value}: {claim.id}", told)
    return Account(fails=verdict.fails, skipped=skipped, text=text, properties=tuple(properties))


def _lines(title: str, told: Mapping[str, str]) -> str:
    """Return what is told below a title, each under its name; what is empty is left out."""
    lines = [plain(title)]
    for name, text in told.items():
        for at, line in enumerate(plain(text).splitlines()):
            lines.append(f"  {'' if at else name:<9} {line}")
    return "\n".join(lines)


def costs(run: Run, report_s: float) -> Iterator[str]:
    """Yield what a run itself cost: its phases, the device's share, the slowest variants."""
    profile = view.profile_of(run, report_s=report_s)
    devices = view.count(profile.devices, "device")
    yield plain(f"profile: {view.duration(profile.wall_s)} on {devices}")
    for name, seconds in profile.phases.items():
        share, meaning = view.share(seconds / profile.held_s), view.PHASES.get(name, "")
        yield plain(f"  {name:<10} {view.number(seconds, 2):>10} s {share:>9}  {meaning}".rstrip())
    busy, spin = view.share(profile.busy), view.share(profile.spin)
    yield plain(f"  device busy with samples {busy} of the time, pacing them {spin}")
    for variant, wall_s in profile.slowest:
        yield plain(f"  {view.duration(wall_s):>12}  {variant}")


def summary(book: RunView) -> Iterator[str]:
    """Yield the counts, the items that need a reader most, reasons of skips, and notes."""
    yield first_line(book)
    if book.run.shift:
        yield _cut(f"machine-shift: {book.run.shift.reason}")
    if book.source:
        yield _cut(f"compared with {book.source}")
    loud = [one for one in book.ran if not one.mark.is_quiet]
    urgent = [one for one in loud if one.mark.needs_reader]
    items = [*map(_item, urgent), *map(_claim, book.broken), *map(_item, loud[len(urgent) :])]
    for lines in items[:MOST]:
        yield from lines
    if more := items[MOST:]:
        yield f"  ... and {len(more)} more: see the report"
    yield from skip_lines(book)
    yield from (_cut(f"note: {note}") for note in book.run.notes[:MOST])
    if left := book.run.notes[MOST:]:
        yield f"note: {len(left)} more: see the report"


def first_line(book: RunView) -> str:
    """Return how many variants each word holds for; skipped and unclear always."""
    counts = {**dict.fromkeys(ALWAYS_COUNTED, 0), **book.counts}
    ordered = sorted(counts.items(), key=lambda item: view.mark(item[0]).rank)
    tally = ", ".join(f"{count} {word}" for word, count in ordered)
    total = view.count(len(book.variants), "variant")
    return plain(f"{total} on {book.run.facts.name or book.run.sku.slug}: {tally}")


def skip_lines(book: RunView) -> list[str]:
    """Return how many variants were skipped for each of the commonest reasons."""
    found = skips(book.variants)
    told = [_cut(f"{word} {len(ids)}: {why}") for word, why, ids in found[:MOST_SKIPS]]
    more = len(found) - MOST_SKIPS
    return [*told, f"skipped for {more} more reasons: see the report"] if more > 0 else told


def _claim(one: ClaimVerdict) -> Iterator[str]:
    found = f"{view.ratio(one.ratio)} found, {view.ratio(one.required)} asked for"
    yield plain(f"  {one.word:<12} {found}  {one.claim}")
    yield f"{INDENT}{_cut(one.reason)}"


def _item(one: VariantView) -> Iterator[str]:
    """Yield the line of a variant and its cause, the id last: a long one harms nothing."""
    change, why, name = one.telling, _cut(one.cause), one.variant.id
    if change is None or one.mark.tone == "unclear":
        yield plain(f"  {one.mark.word:<12} {name}{': ' if why else ''}{why}")
        return
    interval = f"({view.interval(change.low, change.high)})"
    yield plain(f"  {one.mark.word:<12} {view.change(change):>8} {interval:<20} {name}")
    if why:
        yield f"{INDENT}{why}"


def _cut(text: str) -> str:
    return textwrap.shorten(plain(text), MOST_CHARACTERS, placeholder=" ...")


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
            name, half = plain(variant), (ID_WIDTH - 1) // 2
            name = name if len(name) <= ID_WIDTH else f"{name[:half]}~{name[-half:]}"
            told = f"{plain(phase)[:PHASE_WIDTH]:<8} {name:<{ID_WIDTH}}"
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
