"""Runs of the night: time limit, shards, proposals, waivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def perf_commands(app: typer.Typer) -> None:
    """Add ``perfsuite merge``."""
    from perfsuite.nightly.merge import merge

    app.command()(merge)
