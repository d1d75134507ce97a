"""The command that proves what the engine is held to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.commands import Device, app
from perfsuite.cli.project import find_project, say
from perfsuite.duration import seconds_of
from perfsuite.errors import UsageError
from perfsuite.files import refusing
from perfsuite.model import Run

# Options with a metavar are named: typer 0.27.0 takes the metavar for the name.


@app.command()
def prove(  # noqa: PLR0913, PLR0917 - a command line
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="To measure for: 90s, 20m, 1h")
    ] = "20m",
    device: Device = "auto",
    raw: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RAW", help="Measure nothing, use these; repeatable"),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", metavar="RUN", help="A run file of unchanged code, to count too; repeatable"
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--raw", metavar="FILE", help="Where to keep what is measured"),
    ] = None,
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="What to write")] = Path(
        "reports/proof.md"
    ),
) -> None:
    """Measure planted changes and none, beside other tools, and write a page about it."""
    from perfsuite.prove.page import prove as figures
    from perfsuite.prove.page import write_page
    from perfsuite.prove.raw import read_raw
    from perfsuite.runs import load_run

    whole = [load_run(path) for path in runs or []]
    if len({run.id for run in whole}) < len(whole):
        raise UsageError("the same run is named twice: it would be compared with itself")
    data = read_raw(raw or [_collected(_seconds(time), device, keep)])
    _refuse_strangers(whole, data.header.facts.name)
    proof = figures(data, runs=whole)
    for target in proof.targets():
        say(f"{target.item}. {target.what}: {target.figure or '-'} {target.outcome}")
    if not any(target.figure for target in proof.targets()):
        say("next: too few processes to compare any; measure longer, with --time 20m or more")
    remedy = "what was measured is kept: perfsuite prove --from RAW --page FILE"
    with refusing("cannot write the page", page, remedy=remedy):
        for path in write_page(proof, page):
            say(f"wrote {path}")


def _refuse_strangers(runs: Sequence[Run], name: str) -> None:
    # By name: the slug of a board's revision is younger than some raw data.
    if others := {run.facts.name for run in runs} - {name}:
        raise UsageError(
            f"runs of {', '.join(sorted(others))} beside raw data of {name}",
            remedy="name runs of the device that the raw data is of",
        )


def _collected(budget_s: float, device: str, keep: Path | None) -> Path:
    from perfsuite.prove.collect import Plan, collect

    project = find_project()
    name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S.jsonl")
    path = keep or project.folder / "proofs" / name
    collect(Plan(path=path, root=project.root, device=device, budget_s=budget_s), say)
    say(f"raw data: {path}")
    return path


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise UsageError(f"--time {error}", remedy="write 90s, 20m or 1h30m") from error
