"""What commands have in common: the project they are about, their options, how they speak."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfsuite.boundary import UsageError
from perfsuite.model import BUILT_IN_DEVICES, BaselineEntry, Run
from perfsuite.report import view
from perfsuite.report.terminal import plain, short
from perfsuite.run.config import BASELINES, BASELINES_DEFAULT, Config, named_packs, paths_of
from perfsuite.store.files import refusing
from perfsuite.store.runs import list_runs, load_run, run_path

# What pytest takes for its root directory, and what a run leaves behind.
MARKS = (".perfsuite", "pyproject.toml", "pytest.ini", "tox.ini", ".git")
# Without a terminal there is no edge. Between columns is a gap; no column gets narrower.
WIDE, GAP, LEAST = 100_000, 3, 8


Packs = Annotated[
    list[str] | None,
    typer.Option(
        "--packs", metavar="NAMES_OR_PATHS", help="As --perf-packs: only these, by commas"
    ),
]
_KNOWN = ", ".join(("auto", *BUILT_IN_DEVICES))
Device = Annotated[
    str, typer.Option(metavar="NAME", help=f"{_KNOWN} or a pack's; auto takes GPUs if any")
]
BaselinesOption = Annotated[
    Path | None,
    typer.Option("--baselines", metavar="DIR", help="Default: perf_baselines of pyproject.toml"),
]


def find_project(packs: Sequence[str] | None = None, **asked: Any) -> Config:
    """Return what is asked for in the project that the current folder is part of."""
    here = Path.cwd()
    folders = (here, *here.parents)
    root = next((each for each in folders if any((each / mark).exists() for mark in MARKS)), here)
    return Config(root=root, only=(*chain(*map(named_packs, packs or ())),), **asked)


def with_baselines(project: Config, given: Path | None) -> Config:
    """Return it with the folders of its own numbers: the given one, else what its settings say.

    The first of them is what is written to; ``UsageError`` where these name none.
    """
    found = (given,) if given else paths_of(project.root, BASELINES, BASELINES_DEFAULT)
    if not found:
        raise UsageError(
            f"the project's {BASELINES} names no folder",
            where=str(project.root),
            remedy="name one there, or with --baselines DIR",
        )
    return replace(project, baselines=found)


def stored_run(project: Config, name: str = "") -> Run:
    """Return a run by file, by id or, without a name, the newest; ``UsageError`` if unknown."""
    remedy = "name a run file that is there, or a run's id"
    with refusing("there is no such file", name, remedy=remedy, kind=UsageError):
        if name and Path(name).is_file():
            return load_run(Path(name))
    if Path(name).suffix or Path(name).name != name:
        raise UsageError("there is no such file", where=name, remedy=remedy)
    known = list_runs(project.folder)
    path = run_path(project.folder, name) if name else next(iter(known), None)
    if path is None or path not in known:
        ids = ", ".join(known_path.stem for known_path in known[:3])
        raise UsageError(
            f"there is no run {name!r}" if name else "there is no run yet",
            where=str(project.folder / "runs"),
            remedy=f"name a run file or one of: {ids}" if ids else "measure: pytest --perf",
        )
    return load_run(path)


def console(*, stderr: bool = False) -> Console:
    """Return where to speak; variant ids have brackets, so no text is taken for markup."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # some have fewer characters than we use
        stream.reconfigure(errors="replace")
    width = None if stream is None or stream.isatty() else WIDE
    return Console(stderr=stderr, markup=False, highlight=False, width=width)


def say(text: str, *, stderr: bool = False) -> None:
    """Say lines; what a terminal would obey is made plain, here and in ``say_table`` alone."""
    console(stderr=stderr).print(plain(text, most=sys.maxsize), soft_wrap=True)


def say_error(error: Exception) -> None:
    """Say what went wrong, where, and what to do."""
    say(f"perfsuite: {error}", stderr=True)


def say_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Say rows as a table; on a screen the last column gives room first, an id in its middle."""
    heads, held, speaker = list(columns), [[plain(cell) for cell in row] for row in rows], console()
    table = Table(title=plain(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    widths = [max(map(cell_len, column)) for column in zip(heads, *held, strict=True)]
    room, speaker.width = speaker.width - 1 - GAP * len(widths), WIDE
    widths[-1] = min(widths[-1], max(LEAST, room - sum(widths[:-1])))
    while sum(widths) > room and max(widths) > LEAST:
        widths[widths.index(max(widths))] -= 1
    for head, width in zip(heads, widths, strict=True):
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=width)
    is_id = [head == "variant" for head in heads]
    for row in held:
        cells = zip(row, widths, is_id, strict=True)
        table.add_row(
            *(Text(short(cell, width) if an_id else cell) for cell, width, an_id in cells)
        )
    with speaker.capture() as told:
        speaker.print(table)
    for line in told.get().splitlines():
        speaker.out(line.rstrip(), highlight=False)


def time_of(entry: BaselineEntry) -> str:
    """Return an entry's time to the digits that its noise supports; nothing if it has none."""
    return estimate_words(entry)[0]


def estimate_words(entry: BaselineEntry) -> tuple[str, str, str, str]:
    """Return an entry's time, its spread, and how many processes and units it is of."""
    metric = entry.metrics.get("time_us")
    if metric is None:  # a variant with exact metrics only
        return "", "", "", ""
    return (
        plain(view.time(metric.center, metric.between)),
        plain(view.share(metric.between)),
        str(sum(map(len, metric.values.values()))),
        str(len(metric.values)),
    )
