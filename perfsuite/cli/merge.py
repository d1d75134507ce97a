"""The command that joins the runs of shards."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.commands import Baselines, Packs, app
from perfsuite.cli.project import console, find_project, say
from perfsuite.cli.store import known_history
from perfsuite.model import Tier
from perfsuite.options import EXIT_MACHINE


@app.command()
def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="One run file or id a shard")],
    *,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Of the report")] = Path("reports"),
    baselines: Baselines = None,
    pack: Packs = None,
) -> None:
    """Join the runs of --perf-shard into one, judge and report it; exit code 1 if it fails.

    What the shards stored in the history is not stored again.
    """
    from perfsuite.baselines import Exceptions
    from perfsuite.closing import book_of, tell_github, write
    from perfsuite.merging import conclude, merged
    from perfsuite.terminal import summary

    project = find_project()
    whole = merged([project.load_run(name) for name in runs])
    roots = project.baseline_roots(baselines, pack)
    exceptions = Exceptions.load(roots, datetime.now(UTC).date())
    packs = project.packs(pack, Tier.SMOKE)
    outcome = conclude(
        whole,
        folder=project.folder,
        roots=roots,
        exceptions=exceptions,
        packs=packs,
    )
    known = known_history(project, outcome.run)
    steps, book = outcome.steps, book_of(outcome, packs, history=known)
    lines = [*write(book, folder, steps), f"run: {outcome.run_file}"]
    annotations = tell_github(book, project.root, steps)
    lines += steps.notes
    for line in (*summary(book), *lines):
        say(line)
    for line in annotations:  # which GitHub's runner is to obey
        console().print(line, soft_wrap=True)
    for text in steps.tracebacks:
        say(text)
    is_machine = book.has_shifted and not book.is_broken
    raise typer.Exit(EXIT_MACHINE if is_machine else int(book.is_broken or not steps.are_done))
