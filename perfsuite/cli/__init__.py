"""The command line: doctor, list, run, compare, baselines, reports."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import perfsuite
from perfsuite.boundary import PerfError, UsageError, user_name
from perfsuite.explain.counters import obstacles
from perfsuite.judge.compare import Against, Policy
from perfsuite.judge.noise import entries_of, prior_for
from perfsuite.judge.peaks import COMPUTE, MEMORY, MIXED, TRANSFER
from perfsuite.judge.verdict import judge
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    DeviceFacts,
    Health,
    Pack,
    Regime,
    Run,
    Series,
    Settings,
    Sku,
    Tier,
    Variant,
)
from perfsuite.packs.find import TAKEN_NAMES, PackSource, discover
from perfsuite.packs.listing import load_catalogue
from perfsuite.packs.select import missing_need
from perfsuite.report import view
from perfsuite.report.data import RunView, read
from perfsuite.report.html import write_beside, write_report
from perfsuite.report.terminal import first_line, plain, skip_lines
from perfsuite.run.config import BASELINES, BASELINES_DEFAULT, paths_of
from perfsuite.run.expected import find_yardstick
from perfsuite.run.finish import book_of
from perfsuite.run.run import Outcome
from perfsuite.store.baselines import (
    Baselines,
    Root,
    packs_in,
    read_sku,
    sku_folder,
    skus_in,
)
from perfsuite.store.exceptions import Exceptions
from perfsuite.store.files import refusing, replace_file
from perfsuite.store.runs import list_runs, load_run, run_path
from perfsuite.store.sku import fingerprint_differs, sku_for, sku_of
from perfsuite.workers.process import inventory
from perfsuite.workers.units import open_desks, products_of

if TYPE_CHECKING:
    from perfsuite.history.store import History
    from perfsuite.store.baselines import Difference


# The project a command is about, and how the command speaks.


# What pytest takes for its root directory, and what a run leaves behind.
MARKS = (".perfsuite", "pyproject.toml", "pytest.ini", "tox.ini", ".git")
# Without a terminal nobody sees the edge: a cut id could not be copied.
WIDE = 200


@dataclass(frozen=True, slots=True)
class Project:
    """Where a project's runs and packs are."""

    root: Path

    @property
    def folder(self) -> Path:
        """Return the folder of run files."""
        return self.root / ".perfsuite"

    def load_run(self, name: str = "") -> Run:
        """Return a run by file, by id or, without a name, the newest; ``UsageError`` if unknown."""
        remedy = "name a run file that is there, or a run's id"
        with refusing("there is no such file", name, remedy=remedy, kind=UsageError):
            is_file = bool(name) and Path(name).is_file()
        if is_file:
            return load_run(Path(name))
        known = list_runs(self.folder)
        if Path(name).suffix or Path(name).name != name:
            raise UsageError("there is no such file", where=name, remedy=remedy)
        path = run_path(self.folder, name) if name else next(iter(known), None)
        if path is None or path not in known:
            ids = ", ".join(known_path.stem for known_path in known[:3])
            raise UsageError(
                f"there is no run {name!r}" if name else "there is no run yet",
                where=str(self.folder / "runs"),
                remedy=f"name a run file or one of: {ids}" if ids else "measure: pytest --perf",
            )
        return load_run(path)

    def sources(self, extra: Iterable[Path] | None) -> tuple[PackSource, ...]:
        """Return the packs of this project and environment."""
        return discover(self.root, extra=tuple(extra or ()))

    def packs(self, extra: Iterable[Path] | None, tier: Tier) -> tuple[Pack, ...]:
        """Return the packs with their variants up to a tier."""
        return load_catalogue(self.sources(extra), tier=tier)

    def baseline_roots(
        self, given: Path | None, extra: Iterable[Path] | None = None
    ) -> tuple[Root, ...]:
        """Return where accepted numbers lie: the project's or the given folder, then the packs'."""
        from perfsuite.store.baselines import shipped_by

        return (*self.baseline_folders(given), *shipped_by(self.sources(extra)))

    def baseline_folders(self, given: Path | None) -> tuple[Path, ...]:
        """Return where the project's own numbers lie: the given folder, else what its settings say.

        The first of them is what is written to; ``UsageError`` where these name none.
        """
        if given:
            return (given,)
        found = paths_of(self.root, BASELINES, BASELINES_DEFAULT)
        if not found:
            raise UsageError(
                f"the project's {BASELINES} names no folder",
                where=str(self.root),
                remedy="name one there, or with --baselines DIR",
            )
        return found


def find_project() -> Project:
    """Return the project that the current folder is part of."""
    here = Path.cwd()
    folders = (here, *here.parents)
    root = next((each for each in folders if any((each / mark).exists() for mark in MARKS)), here)
    return Project(root)


def console(*, stderr: bool = False) -> Console:
    """Return where to speak; variant ids have brackets, so no text is taken for markup."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # some have fewer characters than we use
        stream.reconfigure(errors="replace")
    width = None if stream is None or stream.isatty() else WIDE
    return Console(stderr=stderr, markup=False, highlight=False, width=width)


def say(text: str, *, stderr: bool = False) -> None:
    """Say lines; what a terminal would obey is made plain, here and in ``say_table`` alone."""
    console(stderr=stderr).print(plain(text, most=len(text)), soft_wrap=True)


def say_error(error: PerfError) -> None:
    """Say what went wrong, where, and what to do."""
    say(f"perfsuite: {error}", stderr=True)


def say_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Say rows as a table; variants stay whole, so that they can be copied."""
    table = Table(title=plain(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "variant")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console().print(table)


# The commands and their options.


app = typer.Typer(
    help="GPU performance regression suite. Measuring itself is: pytest --perf",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
baseline_command = typer.Typer(help="The accepted numbers of each SKU.", no_args_is_help=True)
app.add_typer(baseline_command, name="baseline")

Packs = Annotated[
    list[Path] | None,
    typer.Option("--pack", metavar="FILE_OR_FOLDER", help="One more pack; repeatable"),
]
Select = Annotated[
    str, typer.Option("--select", metavar="EXPR", help="As --perf-select: 'impl=triton,n>=1e6'")
]
Device = Annotated[str, typer.Option(help="auto, cuda, cpu or a pack's; auto takes GPUs if any")]
Baselines_commands = Annotated[
    Path | None,
    typer.Option("--baselines", metavar="DIR", help="Default: perf_baselines of pyproject.toml"),
]
TierOption = Annotated[Tier, typer.Option(help="How many values of each axis")]


@app.command()
def doctor(
    tier: TierOption = Tier.NIGHTLY,
    device: Device = "auto",
    pack: Packs = None,
    baselines: Baselines_commands = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 20 if it is in use")] = False,
) -> None:
    """Say what this machine is, what would spoil a comparison, and what cannot run here."""
    from perfsuite import cli as room

    project = find_project()
    room.say_software()
    packs = project.packs(pack, tier)
    for broken in (each for each in packs if each.error):
        say(f"Pack {broken.name} cannot be listed: {broken.error}")
    # Last comes what may fail: the device is opened, as a run would.
    units = room.examine(device, packs)
    room.say_device(units)
    room.say_noise(units[0])
    room.say_baselines(units[0], project.baseline_roots(baselines, pack))
    room.say_skips(packs, units[0], tier.value)
    if room.say_spoilers(units[0]) and strict:
        raise typer.Exit(20)


@app.command("list")
def list_variants(tier: TierOption = Tier.SMOKE, select: Select = "", pack: Packs = None) -> None:
    """List the variants of a tier; exit code 1 if a pack cannot be listed."""
    from perfsuite.packs.select import parse_selection
    from perfsuite.packs.select import select as chosen

    packs = find_project().packs(pack, tier)
    variants = chosen([v for each in packs for v in each.variants], parse_selection(select))
    # A case is described once, beside its first variant.
    firsts = set({(v.pack, v.case.name): v.id for v in reversed(variants)}.values())
    docs = {name: v.case.doc.partition("\n")[0] for v in variants if (name := v.id) in firsts}
    rows = [(v.id, v.tier.value, _needs(v), docs.get(v.id, "")) for v in variants]
    say_table(f"{len(rows)} variants", ("variant", "from tier", "needs", "what"), rows)
    broken = [each for each in packs if each.error]
    for each in broken:
        say(f"Pack {each.name} cannot be listed: {each.error}")
    raise typer.Exit(1 if broken else 0)


def _needs(variant: Variant) -> str:
    return ", ".join(dict.fromkeys(f"{need.kind} {need.value}" for need in variant.needs))


@app.command()
def run(
    variant: Annotated[str, typer.Argument(help="The id, as in reports")],
    profiler: Annotated[
        list[str] | None, typer.Argument(help="After --: a command to run it under, e.g. ncu")
    ] = None,
    launches: Annotated[int, typer.Option(min=1, help="After one warm-up")] = 10,
    device: Device = "auto",
    pack: Packs = None,
) -> None:
    """Run one variant alone: build, check, launch. With "-- ncu --set full" it is profiled.

    Under a profiler it is not checked, so that the profile is of the launches only.
    """
    from perfsuite.cli.launch import Order, launch
    from perfsuite.workers.units import resolved

    packs, found, home = _find(variant, pack)
    where, _, own = resolved(device, packs)
    order = Order(
        pack=found.pack,
        origin=home.origin,
        case=found.case.name,
        axes=found.axes,
        device=where,
        accelerator=own,
        launches=launches,
        check=not profiler,
        paths=tuple(sys.path),
        kernels=home.kernels,
    )
    raise typer.Exit(launch(order, profiler or ()))


def _find(name: str, extra: list[Path] | None) -> tuple[Sequence[Pack], Variant, Pack]:
    """Return all packs, a variant by id, of any tier, and its pack."""
    from perfsuite.packs.select import parse_selection, select

    selection = parse_selection(name)
    if not selection.id:
        raise UsageError(
            f"{name!r} is no variant id", remedy="copy one from perfsuite list, in quotes"
        )
    # All packs: one may ask for the kernels of the others.
    packs = find_project().packs(extra, Tier.FULL)
    pack = named(packs, selection.id.partition(".")[0])
    (variant,) = select(pack.variants, selection)
    return packs, variant, pack


def named(packs: Sequence[Pack], name: str) -> Pack:
    """Return a pack by name; ``UsageError`` if there is none, or if it cannot be listed."""
    pack = next((pack for pack in packs if pack.name == name), None)
    if pack is None or pack.error:
        raise UsageError(
            pack.error if pack else f"there is no pack for {name!r}",
            remedy="" if pack else f"packs: {', '.join(each.name for each in packs)}",
        )
    return pack


@app.command("new-pack")
def make_pack(
    name: Annotated[str, typer.Argument(help="Of the pack: it stands first in its variants' ids")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where to write it; default: NAME-perf"),
    ] = None,
) -> None:
    """Write the start of a pack: a case with its kernel, reference and claim, and its tests."""
    taken = [source.name for source in find_project().sources(None)]
    place = new_pack(name, folder, taken=taken)
    say(f"wrote {place}")
    say(f"next: pip install -e {shlex.quote(str(place))} && pytest --perf --perf-packs {name}")
    say("then make it yours: its README.md says how")


@app.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run files or ids; the newest if left out, several side by side",
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where to write it")
    ] = Path("reports"),
    baselines: Baselines_commands = None,
) -> None:
    """Write the report of a stored run again, or one page that compares runs of several SKUs."""
    say(str(rendered(find_project(), runs or [""], folder, baselines)))


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A run file or id: the yardstick")],
    now: Annotated[str, typer.Argument(metavar="B", help="A run file or id: what is judged")],
) -> None:
    """Judge run B as if run A were its baseline; exit code 1 if something fails."""
    project = find_project()
    yardstick = project.load_run(before)
    book = judged_against(project.load_run(now), yardstick)
    say_book(book)
    raise typer.Exit(1 if book.fails else 0)


# The commands about accepted numbers: accept, propose, diff, lint, show.


# Without names so many of the newest runs are read: each holds every sample of a night.
MOST_RUNS = 30


@baseline_command.command()
def accept(
    run: Annotated[str, typer.Argument(help="A run file or id")],
    reason: Annotated[str, typer.Option(help="Why; stored with the numbers")],
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="WORD", help="A pack, pack.case or variant; repeatable"),
    ] = None,
    baselines: Baselines_commands = None,
) -> None:
    """Make the numbers of a run the baseline of its SKU; what gets slower by it is listed."""
    from perfsuite.run.accept import accept as make_baseline

    project = find_project()
    accepted = make_baseline(
        project.load_run(run),
        project.baseline_folders(baselines)[0],
        reason=reason,
        by=user_name(),
        select=select or (),
    )
    changed = {**accepted.changed, **{n: f"SLOWER: {why}" for n, why in accepted.slower.items()}}
    rows = [
        *((name, "added", "") for name in accepted.added),
        *((name, "changed", what) for name, what in changed.items()),
        *((name, "left as it is", "no more than noise") for name in accepted.unchanged),
        *((name, "not accepted", why) for name, why in accepted.refused.items()),
    ]
    say_table(f"Accepted from run {run}", ("variant", "outcome", "why"), rows)
    say(f"accepted: {accepted}")
    for path in accepted.written:
        say(f"wrote {path}")


@baseline_command.command()
def propose(  # noqa: PLR0913, PLR0917 - a command line
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
    baselines: Baselines_commands = None,
) -> None:
    """Write what the last nights say to the baselines' files, for git diff; nothing is committed.

    A page in Markdown says of each entry what it was and will be, how sure that is, and why.
    """
    from perfsuite.nightly.propose import Terms, markdown
    from perfsuite.nightly.propose import propose as proposed
    from perfsuite.store.exceptions import Exceptions

    project = find_project()
    roots = project.baseline_folders(baselines)
    found = proposed(
        [project.load_run(name) for name in runs] if runs else _newest(project),
        roots[0],
        exceptions=Exceptions.load(roots, _today()),
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


@baseline_command.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="[A]", help="A folder or a revision")] = "HEAD",
    now: Annotated[
        str, typer.Argument(metavar="[B]", help="Likewise; the working tree if left out")
    ] = "",
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a review")] = False,
    baselines: Baselines_commands = None,
) -> None:
    """Show which entries two states of the baselines do not share, by how much, and why."""
    from perfsuite.nightly.propose import table
    from perfsuite.store.baselines import differences

    root = find_project().baseline_folders(baselines)[0]
    with ExitStack() as stack:
        folders = [_folder(name, root, stack) for name in (before, now)]
        rows = [_row(each) for each in differences(*folders)]
    columns = ("SKU", "variant", "time before", "now", "change", "what", "reason before", "now")
    if markdown:
        say("\n".join(table(columns, rows)))
    else:
        say_table(f"{before} against {now or 'the working tree'}", columns, rows)
    say(f"{len(rows)} entries differ")


def _folder(name: str, root: Path, stack: ExitStack) -> Path:
    """Return the baselines that a word names: a folder if there is one, else a revision."""
    from perfsuite.store.git import folder_at

    if not name or Path(name).is_dir():
        return Path(name) if name else root
    return folder_at(root, name, Path(stack.enter_context(TemporaryDirectory())))


def _row(each: Difference) -> tuple[str, ...]:
    from perfsuite.report import view

    times = [time_of(side.entry) if side else "" for side in (each.old, each.new)]
    reasons = [side.accepted.reason if side else "" for side in (each.old, each.new)]
    change = view.percent(each.change) if each.change is not None else ""
    return each.sku, each.variant, *times, change, each.what, *reasons


@baseline_command.command()
def lint(
    tier: Annotated[
        Tier | None, typer.Option(help="Also look for missing entries, up to this tier")
    ] = None,
    older_than: Annotated[int, typer.Option(min=1, metavar="DAYS", help="Say which are")] = 180,
    pack: Packs = None,
    baselines: Baselines_commands = None,
) -> None:
    """Say what is wrong with the baselines and exceptions, one line each; exit code 1 if any is."""
    from perfsuite.nightly.lint import Linter

    if baselines and not baselines.is_dir():
        raise UsageError(
            "there is no such folder of baselines", where=str(baselines), remedy="name one that is"
        )
    project = find_project()
    roots = project.baseline_folders(baselines)
    packs = project.packs(pack, Tier.FULL)
    linter = Linter(packs, _today(), older_than, tier)
    problems = [problem for root in roots for problem in linter.problems(root)]
    for problem in problems:
        say(str(problem))
    counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    say(f"{counted} in {', '.join(map(str, roots))}")
    raise typer.Exit(1 if problems else 0)


def _today() -> date:
    return datetime.now(UTC).date()


@baseline_command.command()
def show(
    sku: Annotated[str, typer.Argument(help="As in the folder's name; all if left out")] = "",
    variant: Annotated[str, typer.Argument(help="The id, for all that is kept of it")] = "",
    baselines: Baselines_commands = None,
) -> None:
    """Show which SKUs have baselines, what is accepted for one of them, or one entry in full."""
    from perfsuite import cli as room

    roots = find_project().baseline_folders(baselines)
    if variant:
        room.say_entry(roots, sku, variant)
    elif sku:
        room.say_entries(roots, sku, _today())
    else:
        for root in roots:
            room.say_skus(root)


@baseline_command.command()
def folders() -> None:
    """Say where this project's baselines lie, one folder a line; the first is written to."""
    for folder in find_project().baseline_folders(None):
        say(str(folder))


# The ``perfsuite`` command: what a person asks outside a run.


def main() -> None:
    """Run the command; a deliberate error is its message and exit code 2, without a traceback."""
    try:
        if sys.stdout is None:  # whoever started it has closed it: nothing could be said
            raise UsageError("standard output is closed", remedy="redirect it: >/dev/null")
        remedy = "change to a folder that is there: cd"
        with refusing("the current folder is gone", "", remedy=remedy, kind=UsageError):
            Path.cwd()
        app(prog_name="perfsuite")
    except PerfError as error:
        say_error(error)
        raise SystemExit(2) from error


# One run judged against another, and what a folder of baselines holds.


def judged_against(run: Run, before: Run) -> RunView:
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


def say_book(book: RunView) -> None:
    """Say each variant's verdict, what needs a reader first, and how many were skipped."""
    rows = []
    for one in book.ran:
        moved = one.shown.change if one.change or one.shown.name else ""
        rows.append((one.mark.word, moved, one.interval, one.variant.id, one.reason))
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


# The history of a project, as commands open it.


def known_history(project: Project, run: Run) -> dict[str, Series]:
    """Return what is known of a run's variants; nothing where there is no history to ask."""
    try:
        with open_history(project) as store:
            from perfsuite.history.store import recent

            found = recent(store, run, {variant.id for variant in run.variants})
            say_notes(store)
            return found
    except PerfError:
        return {}


def say_notes(store: History) -> None:
    """Say what was damaged of what was read."""
    for note in store.notes:
        say(f"note: {note}", stderr=True)


def open_history(project: Project) -> History:
    """Open it; ``UsageError`` where there is none or a library is missing."""
    try:
        from perfsuite.history.store import History, url_of
    except ImportError as error:
        raise UsageError(
            f"a history needs {error.name}", remedy=f"pip install {error.name}"
        ) from error
    url = url_of(project.root)
    if not url:
        raise UsageError(
            "this project keeps no history", remedy="set perf_history, or PERFSUITE_HISTORY"
        )
    return History(url, project.root)


# Renders stored runs: one as its report, several side by side.


def rendered(project: Project, names: Sequence[str], folder: Path, baselines: Path | None) -> Path:
    """Write the page of the runs named and return it; ``UsageError`` if one is not there."""
    run, *others = [project.load_run(name) for name in names]
    if others:
        return write_beside((run, *others), folder)
    roots = project.baseline_roots(baselines)
    packs = project.packs(None, Tier.SMOKE)
    found = find_yardstick(roots, project.folder, run=run, packs=packs).beside(run)
    # Baselines may have been accepted since: what a run was compared with, its verdicts know.
    told = {verdict.source for verdict in run.verdicts if verdict.source}
    source = told.pop() if len(told) == 1 else found.source
    entries, peaks = found.entries, found.reached
    outcome = Outcome(run, project.folder, entries, source, found.previous, peaks=peaks)
    book = book_of(outcome, packs, history=known_history(project, run))
    return write_report(book, folder)


# Writes the start of a pack: a distribution that can be installed, run and made one's own.


# It becomes a module's, a distribution's and a file's name: lower-case, with a letter first.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
LONGEST = 40
# Left off, so that no tool takes a template for the file that is made of it.
SUFFIX = ".txt"
RENAMED = {"gitignore": ".gitignore", "github": ".github"}


def new_pack(name: str, folder: Path | None = None, *, taken: Sequence[str] = ()) -> Path:
    """Write the pack ``name`` and return its folder, by default ``NAME-perf`` in the current one.

    All of it or nothing is written. A name that cannot be a pack's or is ``taken``, and a folder
    that exists or cannot be written, is a ``UsageError``.
    """
    _check(name, taken)
    project = f"{name.replace('_', '-')}-perf"
    place = folder or Path(project)
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{str(place)!r} exists already; nothing was written",
            where=str(place.absolute()),
            remedy="name another with --folder DIR, or move it away",
        )
    words = {"pack": name, "package": f"{name}_perf", "project": project}
    words["version"] = ".".join(perfsuite.__version__.split(".")[:2])
    remedy = "name a folder that can be written with --folder DIR"
    with refusing("cannot write the pack", place.absolute(), remedy=remedy, kind=UsageError):
        _write(place, dict(_files(words)))
    return place


def _check(name: str, taken: Sequence[str]) -> None:
    if not NAME.match(name) or len(name) > LONGEST or name in TAKEN_NAMES:
        raise UsageError(
            f"{name!r} cannot be a pack's name",
            remedy=f"take up to {LONGEST} lower-case letters, digits and single underscores, a "
            "letter first, as in acme or acme_kernels; 'sku' is taken",
        )
    if name in taken:
        raise UsageError(
            f"there is a pack of the name {name!r} already",
            remedy="take another; perfsuite list shows the packs of this environment and project",
        )


def _write(place: Path, files: Mapping[Path, str]) -> None:
    """Write the files beside the place and move them there at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        for path, text in files.items():
            file = beside / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _files(words: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield each file of the pack by its path inside it."""
    root = resources.files("perfsuite.cli").joinpath("templates", "new_pack")
    for template, parts in _templates(root):
        *folders, last = parts
        name = last.removesuffix(SUFFIX)
        named = RENAMED | {"package": words["package"]}
        inside = [named.get(part, part) for part in folders]
        text = Template(template.read_text("utf-8")).substitute(words)
        yield Path(*inside, RENAMED.get(name, name)), text


def _templates(
    folder: Traversable, above: tuple[str, ...] = ()
) -> Iterator[tuple[Traversable, tuple[str, ...]]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        parts = (*above, entry.name)
        if entry.is_dir():
            yield from _templates(entry, parts)
        elif entry.name.endswith(SUFFIX):
            yield entry, parts


# What perfsuite sees of this machine, and what on it would spoil a comparison.


GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SOFTWARE = {
    "torch": "inputs, references and most implementations, on every device",
    "triton": "variants written in Triton",
    "cuda-core": "timing on NVIDIA GPUs, and variants in CUDA C++",
    "nvidia-ml-py": "finding GPUs and reading their state",
}
BUSY_LOAD = 0.25  # of the cores; a run of our own adds about one
BUSY_PERCENT = 5.0
WARM_C = 80.0
TIME = "time_us"
# A launch this long is timed with the noise of its class, whatever its issuing costs.
LONG_US = 1000.0


def say_software() -> None:
    """Say what of the software that measuring needs is here, and which GPUs its driver shows."""
    rows = [(name, _version(name), purpose) for name, purpose in SOFTWARE.items()]
    say_table("Software", ("package", "version", "for"), rows)
    products = products_of(inventory())
    for gpu in (gpu for group in products for gpu in group):
        say(f"GPU {gpu.index}: {gpu.name} ({gpu.uuid})")
    for others in products[1:]:
        uuids = ",".join(gpu.uuid for gpu in others)
        say(f"A run takes the GPUs of one product; these with CUDA_VISIBLE_DEVICES={uuids}")
    if not products:
        say("No NVIDIA GPU, or its driver does not answer: runs use the CPU")
    for text in _counters() if products else ():
        say(f"Counters (--perf-counters): {text}")


def _counters() -> Iterator[str]:
    """Yield with what counters would be read, and what stands against it."""
    ncu = shutil.which("ncu")
    if ncu is None:
        yield "none, NVIDIA's Nsight Compute (ncu) is not on the PATH"
        return
    against = list(obstacles())
    yield from [f"none, {each}" for each in against] or [f"by {ncu}"]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def examine(device: str, packs: Sequence[Pack]) -> tuple[DeviceFacts, ...]:
    """Open the devices that a run would use and return what they say of themselves."""
    for own, name in ((pack.accelerator, pack.name) for pack in packs if pack.accelerator):
        has = f"has {', '.join(own.units)}" if own.units else "has none"
        say(f"Device {own.name} of the pack {name}: this machine {has}")
    with ExitStack() as stack:
        desks = open_desks(device, packs, Settings(processes=1), stack)
        return tuple(desk.facts for desk in desks)


def say_device(units: Sequence[DeviceFacts]) -> None:
    """Say which product this is, with the facts that a comparison rests on."""
    facts, sku = units[0], sku_of(units[0])
    known = {
        "device": f"{facts.name} ({facts.device})",
        "SKU": sku.slug,
        "units": ", ".join(unit.unit for unit in units),
        "architecture": facts.arch,
        "memory": f"{facts.memory_bytes / 1e9:.1f} GB" if facts.memory_bytes else "",
        "clocks": ", ".join(facts.clocks),
        "features": ", ".join(facts.features),
    }
    say_table("Device", ("fact", "value"), ((k, v) for k, v in known.items() if v))
    rows = [
        *(("identity", name, value) for name, value in sku.facts.items()),
        *(("state", name, value) for name, value in facts.state.items()),
        *(("environment", name, value) for name, value in facts.environment.items()),
    ]
    say_table("Recorded with each result", ("kind", "fact", "value"), rows)


def say_noise(facts: DeviceFacts) -> None:
    """Say how much identical code is expected to differ here, before anything is measured."""
    rows = []
    for work_class in (COMPUTE, MEMORY, MIXED, TRANSFER):
        prior = prior_for(
            facts.device,
            work_class,
            regime=Regime.PACED,
            time_us=LONG_US,
            has_cycles="cycles" in facts.clocks,
        )
        shares = (prior.between, prior.unit, prior.threshold, prior.gate)
        rows.append((work_class, *(f"{share:.2%}" for share in shares)))
    columns = ("class", "between processes", "between units", "threshold", "gate")
    say_table("Noise expected (standard deviations), and what is called a change", columns, rows)


def say_baselines(facts: DeviceFacts, roots: Sequence[Root]) -> None:
    """Say what this device will be compared with."""
    sku = sku_of(facts)
    baselines = Baselines.load(roots, sku)
    if baselines.fingerprint_problem:
        say(f"Baselines of {sku.slug} are of another product: {baselines.fingerprint_problem}")
    elif baselines.stored:
        say(f"Baselines: {len(baselines.stored)} variants of {sku.slug}{_spread(baselines)}")
    else:
        say(f"Baselines: none for {sku.slug}; a run is compared with the last one on this unit")


def _spread(baselines: Baselines) -> str:
    """Say the noise that was measured, where there is some."""
    clocks = [entry.metrics[TIME] for entry in baselines.entries.values() if TIME in entry.metrics]
    between = sorted(clock.between for clock in clocks)
    if not between:
        return ""
    return (
        f"; time varied from process to process by {statistics.median(between):.2%} in the median "
        f"and by {between[-1]:.2%} at most (standard deviations)"
    )


def say_skips(packs: Sequence[Pack], facts: DeviceFacts, tier: str) -> None:
    """Say which variants of a tier cannot run here, by the need that is missing."""
    variants = [variant for pack in packs for variant in pack.variants]
    reasons = Counter(missing_need(variant, facts) for variant in variants)
    runnable = reasons.pop("", 0)
    say(f"Tier {tier}: {runnable} of {len(variants)} variants can run here")
    if reasons:
        say_table("Skipped", ("variants", "because it"), _counted(reasons))


def _counted(reasons: Mapping[str, int]) -> list[tuple[str, str]]:
    most_first = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [(str(count), reason) for reason, count in most_first]


def say_spoilers(facts: DeviceFacts) -> bool:
    """Say what on this machine would spoil a comparison right now; return whether that passes.

    How a machine is set up, power limit and governor, does not: its baselines were measured so.
    """
    lasting, passing = [*_governor()], [*_load()]
    for gpu, limited, doubts in _gpu_spoilers() if facts.device == "cuda" else ():
        lasting += [f"{gpu}: {doubt}" for doubt in limited]
        passing += [f"{gpu}: {doubt}" for doubt in doubts]
    for text in (*passing, *lasting):
        say(f"Would spoil a comparison: {text}")
    if not passing and not lasting:
        say("Nothing seen that would spoil a comparison")
    return bool(passing)


def _load() -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    # This command itself and the device it opened count too, for about a minute.
    if load > 1 + BUSY_LOAD * cores:
        yield f"load average {load:.1f} on {cores} cores; end other work"


def _governor() -> Iterator[str]:
    if GOVERNOR.is_file() and (governor := GOVERNOR.read_text("ascii").strip()) != "performance":
        yield f"CPU frequency governor {governor!r}; set it to 'performance'"


def _gpu_spoilers() -> Iterator[tuple[str, list[str], list[str]]]:
    from perfsuite.devices.nvml import Nvml

    for gpu in inventory():
        nvml = Nvml(gpu.uuid)
        limited = [*_limited(nvml.identity(), nvml.state())]
        doubts = [*_busy(nvml.health(), nvml.foreign_percent())]
        nvml.close()
        yield f"GPU {gpu.index}", limited, doubts


def _busy(health: Health, foreign_percent: float) -> Iterator[str]:
    """Yield what a GPU should not show while nothing of ours runs."""
    if foreign_percent > BUSY_PERCENT:
        yield f"{foreign_percent:.0f} % in use by others"
    if (health.temperature_c or 0) > WARM_C:
        yield f"{health.temperature_c:.0f} °C while idle; look at its cooling"
    if bad := [reason for reason in health.reasons if reason.startswith("hw_")]:
        yield f"slowed down by its hardware ({', '.join(bad)})"


def _limited(identity: Mapping[str, str], state: Mapping[str, str]) -> Iterator[str]:
    default, enforced = (
        identity.get("default_power_limit_w"),
        state.get("enforced_power_limit_w"),
    )
    if default and enforced and enforced != default:
        yield f"power limit {enforced} W, by default {default} W: only alike runs are compared"
