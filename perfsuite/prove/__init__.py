"""Measures how often verdicts err: by planted changes and by none, beside other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def perf_commands(app: typer.Typer) -> None:
    """Add ``perfsuite prove``."""
    from perfsuite.prove.page import prove

    app.command(hidden=True)(prove)
