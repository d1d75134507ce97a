"""The commands about accepted numbers: accept, propose, diff, lint, show."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from perfsuite.boundary import user_name
from perfsuite.cli.commands import Baselines, Packs, baseline
from perfsuite.cli.project import Project, find_project, say, say_table
from perfsuite.errors import PerfError, UsageError
from perfsuite.files import refusing, replace_file
from perfsuite.model import Run, Tier
from perfsuite.runs import list_runs, load_run

if TYPE_CHECKING:
    from perfsuite.baselines import Difference

# Without names so many of the newest runs are read: each holds every sample of a night.
MOST_RUNS = 30


@baseline.command()
def accept(
    run: Annotated[str, typer.Argument(help="A run file or id")],
    reason: Annotated[str, typer.Option(help="Why; stored with the numbers")],
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="WORD", help="A pack, pack.case or variant; repeatable"),
    ] = None,
    baselines: Baselines = None,
) -> None:
    """Make the numbers of a run the baseline of its SKU; what gets slower by it is listed."""
    from perfsuite.baselines import accept as make_baseline

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


@baseline.command()
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
    baselines: Baselines = None,
) -> None:
    """Write what the last nights say to the baselines' files, for git diff; nothing is committed.

    A page in Markdown says of each entry what it was and will be, how sure that is, and why.
    """
    from perfsuite.baselines import Exceptions, Terms
    from perfsuite.baselines import propose as proposed
    from perfsuite.cli.proposal import markdown

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


@baseline.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="[A]", help="A folder or a revision")] = "HEAD",
    now: Annotated[
        str, typer.Argument(metavar="[B]", help="Likewise; the working tree if left out")
    ] = "",
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a review")] = False,
    baselines: Baselines = None,
) -> None:
    """Show which entries two states of the baselines do not share, by how much, and why."""
    from perfsuite.baselines import differences
    from perfsuite.cli.proposal import table

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
    from perfsuite.revision import folder_at

    if not name or Path(name).is_dir():
        return Path(name) if name else root
    return folder_at(root, name, Path(stack.enter_context(TemporaryDirectory())))


def _row(each: Difference) -> tuple[str, ...]:
    from perfsuite.cli.compare import time_of
    from perfsuite.report import view

    times = [time_of(side.entry) if side else "" for side in (each.old, each.new)]
    reasons = [side.accepted.reason if side else "" for side in (each.old, each.new)]
    change = view.percent(each.change) if each.change is not None else ""
    return each.sku, each.variant, *times, change, each.what, *reasons


@baseline.command()
def lint(
    tier: Annotated[
        Tier | None, typer.Option(help="Also look for missing entries, up to this tier")
    ] = None,
    older_than: Annotated[int, typer.Option(min=1, metavar="DAYS", help="Say which are")] = 180,
    pack: Packs = None,
    baselines: Baselines = None,
) -> None:
    """Say what is wrong with the baselines and exceptions, one line each; exit code 1 if any is."""
    from perfsuite.baselines import Linter

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


@baseline.command()
def show(
    sku: Annotated[str, typer.Argument(help="As in the folder's name; all if left out")] = "",
    variant: Annotated[str, typer.Argument(help="The id, for all that is kept of it")] = "",
    baselines: Baselines = None,
) -> None:
    """Show which SKUs have baselines, what is accepted for one of them, or one entry in full."""
    from perfsuite.cli import compare as room

    roots = find_project().baseline_folders(baselines)
    if variant:
        room.say_entry(roots, sku, variant)
    elif sku:
        room.say_entries(roots, sku, _today())
    else:
        for root in roots:
            room.say_skus(root)


@baseline.command()
def folders() -> None:
    """Say where this project's baselines lie, one folder a line; the first is written to."""
    for folder in find_project().baseline_folders(None):
        say(str(folder))
