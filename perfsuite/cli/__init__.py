"""The ``perfsuite`` command: what a person asks outside a run."""

from __future__ import annotations

from perfsuite.cli import baseline, cases, history, merge, proof  # noqa: F401 - their commands are the app's, too
from perfsuite.cli.commands import app
from perfsuite.cli.project import say_error
from perfsuite.errors import PerfError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command; a deliberate error is its message and exit code 2, without a traceback."""
    try:
        app(prog_name="perfsuite")
    except PerfError as error:
        say_error(error)
        raise SystemExit(2) from error
