"""Run files: everything of one run, written as it is measured, read by all that comes after."""

from perfsuite.runs.earlier import behind, earlier_runs, latest_entries
from perfsuite.runs.estimates import CLOCKS, entries_of
from perfsuite.runs.file import RunFile, new_run_id, run_path
from perfsuite.runs.folder import (
    clock_notes,
    last_run,
    list_runs,
    load_run,
    next_run_id,
    unfinished,
)
from perfsuite.runs.past import Past, past_of

__all__ = [
    "CLOCKS",
    "Past",
    "RunFile",
    "behind",
    "clock_notes",
    "earlier_runs",
    "entries_of",
    "last_run",
    "latest_entries",
    "list_runs",
    "load_run",
    "new_run_id",
    "next_run_id",
    "past_of",
    "run_path",
    "unfinished",
]
