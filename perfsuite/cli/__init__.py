"""The ``perfsuite`` command: what a person asks outside a run."""

from __future__ import annotations

import sys
from pathlib import Path

from perfsuite.cli import baseline, history, merge, proof  # noqa: F401 - their commands are the app's, too
from perfsuite.cli.commands import app
from perfsuite.cli.project import say_error
from perfsuite.errors import PerfError, UsageError
from perfsuite.files import refusing

__all__ = ["app", "main"]


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
