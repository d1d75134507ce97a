"""What the terminal shows while a run goes on, and when it ends."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from markupsafe import Markup
from rich import progress
from rich.console import Console

from perfsuite import boundary
from perfsuite.model import DeviceFacts, Result, Run, Status
from perfsuite.report import view
from perfsuite.report.data import Compared, RunView, VariantView, rarest
from perfsuite.report.files import Property, claim_properties, properties, templates
from perfsuite.report.groups import groups_of
from perfsuite.store.files import Closable

# A GitHub runner obeys lines that begin so, after blanks, and the second anywhere in a line. Also
# where we do not know of it: a container's output is printed by the job that started it.
_COMMAND = re.compile(r"^(\s*)(?=::)", re.MULTILINE)
NO_RESULT = {Status.CRASHED, Status.TIMED_OUT, Status.ERROR, Status.DISTURBED}
MOST_GROUPS, MOST_ROWS = 10, 20
HEADINGS = ("verdict", "now", "change", "interval", "rate, of ceiling", "variant")
# A narrow screen shows neither intervals nor rates, and of a long id no less than this.
WIDE, LEAST_ID = 100, 24
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
    """What one pytest item reports; ``properties`` are JUnit's, of plain types.

    What ended without a result, or was not measured at the revision that was asked for, is an
    error: ``is_error``. ``told`` is its outcome in a few words.
    """

    fails: bool = False
    is_error: bool = False
    skipped: bool = False
    text: str = ""
    told: str = ""
    properties: tuple[Property, ...] = ()


def accounts_of(run_view: RunView) -> Mapping[str, Account]:
    """Return the account of every variant and claim of a run, by id."""
    bare, texts = bare_accounts(run_view.run), _texts()
    found = {}
    for one in run_view.variants:
        known = bare.get(one.id, Account(skipped=True))
        is_error = known.is_error or one.unmeasured is not None
        skipped = known.skipped and not is_error
        text = plain(one.reason) if skipped else str(texts.variant(one))
        spent = ("perf_wall_s", sum((each.wall_s for each in one.results), 0.0))
        found[one.id] = Account(
            fails=known.fails or is_error,
            is_error=is_error,
            skipped=skipped,
            text=text,
            told=plain(one.told),
            properties=(*properties(one.last, one.verdict), spent),
        )
    for verdict, _, claim, *_ in run_view.claims:
        known, sides = bare[claim.id], (claim.faster, claim.than)
        views = [one for one in run_view.variants if one.id in sides]
        again = rarest(views).again(" ".join(sides)) if views else ""
        found[claim.id] = replace(
            known,
            text=known.text if known.skipped else str(texts.claim(claim, verdict, again)),
            told=plain(f"{verdict.word.value} {view.ratio(verdict.ratio)}"),
            properties=tuple(claim_properties(verdict)),
        )
    return found


def bare_accounts(run: Run) -> Mapping[str, Account]:
    """Return what items say where their accounts cannot be made: the word and its reason alone."""
    failing = run.settings.failing
    told: list[tuple[str, str, str, bool, bool]] = [
        (r.variant, r.status, r.reason, r.status in failing, r.status == "ok") for r in run.asked
    ]
    told += [(v.variant, v.word, v.reason, v.fails, True) for v in run.verdicts]
    told += [(c.claim, c.word, c.reason, c.fails, c.word != "not applicable") for c in run.claims]
    found = {}
    for name, word, reason, fails, has_word in told:
        text = f"{word}: {name}\n  reason    {reason}" if fails else reason
        is_error, skipped = fails and word in NO_RESULT, not (fails or has_word)
        found[name] = Account(fails=fails, is_error=is_error, skipped=skipped, text=plain(text))
    return found


def summary(
    run_view: RunView, *, is_verbose: bool = False, is_brief: bool = False, width: int = 0
) -> list[str]:
    """Return the counts, what happened and why, a table of numbers, skips, and notes.

    ``width`` is that of a screen in characters: 0 is a file, where nothing is cut. The table has
    the rows of the most interest; all if ``is_verbose``, none that says "same" if ``is_brief``.
    """
    loud = [one for one in groups_of(run_view) if not one.mark.is_quiet]
    rows = [one for one in run_view.ran if one.shown.now != view.NOTHING]
    rows = [one for one in rows if not (is_brief and one.mark.is_quiet)]
    table = _table(rows, width, most=None if is_verbose else MOST_ROWS)
    return str(_texts(width).summary(run_view, loud, table, len(rows))).splitlines()


def _table(told: Sequence[VariantView], width: int, most: int | None) -> list[Markup]:
    """Return one line for each variant that has a number, what needs a reader first."""
    rows = [tuple(map(plain, row)) for row in (HEADINGS, *map(_row, told[:most]))]
    if width and width < WIDE:
        rows = [(*row[:3], row[-1]) for row in rows]
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    room = max(LEAST_ID, width - sum(widths) - 2 * len(widths) - 2) if width else None
    lines = []
    for word, *numbers, name in rows if told else ():
        cells = [f"{word:<{widths[0]}}", *map(str.rjust, numbers, widths[1:])]
        line = f"  {'  '.join(cells)}  {short(name, room)}"
        lines.append(Markup(line))  # noqa: S704 - made plain above
    return lines


def _row(one: VariantView) -> tuple[str, ...]:
    shown, found = one.shown, one.change if one.mark.is_quiet else one.telling
    if found and found is not one.change:  # what the word is about
        shown = Compared(found.metric, *view.beside(found.baseline, found.current, found.unit))
    is_told = found and found.low < found.high and shown.change == view.judged(found)[2]
    interval = view.interval(found.low, found.high) if found and is_told else ""
    rate = view.amount(one.rates[0].value, one.rates[0].unit) if one.rates else ""
    rate += f" {view.share(one.share):>5}" if one.share else ""
    return one.mark.word, shown.now, shown.change, interval, shown.name or rate, one.id


def short(name: str, room: int | None) -> str:
    """Return an id whose middle is left out where there is no room for it."""
    if room is None or len(name) <= room:
        return name
    half = (room - 1) // 2
    return f"{name[:half]}~{name[-half:]}"


@cache
def _texts(width: int = 0) -> Any:
    """Return the macros of what the terminal tells; what they output is made plain."""
    found = templates(plain)
    found.filters["plain"] = plain
    found.globals |= {"MOST_GROUPS": MOST_GROUPS, "width": width and max(width, 2 * LEAST_ID)}
    return found.get_template("terminal.txt.j2").module


class Ticker(Closable):
    """Tells of a run while it goes on: a bar on a terminal, else a line now and then.

    It ``has_begun`` to measure, and ``has_result`` of at least one variant.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._last = time.monotonic()
        self._task: progress.TaskID | None = None
        self.has_begun = self.has_result = False
        # Redrawn on events only: a thread that draws would disturb what is measured on the CPU.
        self._bar = progress.Progress(
            # Ids have brackets, which are no markup.
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}"),
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
            self._task = self._bar.add_task("starting", total=total, left="")

    def phase(self, variant: str, phase: str) -> None:
        """Show what is going on right now."""
        if self._task is not None:
            # A worker tells of its phase itself: it may be any text.
            name = short(plain(variant), ID_WIDTH)
            told = f"{plain(phase)[:PHASE_WIDTH]:<8} {name:<{ID_WIDTH}}"
            self._bar.update(self._task, description=told, refresh=True)

    def finished(self, result: Result, done: int, total: int, left_s: float) -> None:
        """Tell of a variant that has ended; of one that ended badly at once."""
        self.has_result = True
        bad = result.status not in {Status.OK, Status.SKIPPED}
        left = f", about {view.duration(left_s)} left" if left_s else ""
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, left=left[2:], refresh=True)
        due = done == total or time.monotonic() - self._last > QUIET_S
        if bad or (self._task is None and due):
            self._last = time.monotonic()
            self._say(f"[{done}/{total}] {result.variant}: {result.status.value}{left}")

    def note(self, text: str) -> None:
        """Tell what the run has to say about itself."""
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        line = plain(text)
        if self._task is None:
            self._write(line)
        else:
            self._bar.console.print(line, markup=False, highlight=False)
