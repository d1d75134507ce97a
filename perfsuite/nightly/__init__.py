"""Runs of the night: time limit, shards, proposals, waivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def perf_commands(app: typer.Typer) -> None:
    """Add ``perfsuite merge`` and those of ``perfsuite baseline`` that look at many nights."""
    from perfsuite.cli import baseline_command
    from perfsuite.nightly.lint import lint
    from perfsuite.nightly.merge import merge
    from perfsuite.nightly.propose import propose_command

    app.command()(merge)
    baseline_command.command("propose")(propose_command)
    baseline_command.command("lint")(lint)
