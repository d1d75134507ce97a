"""Renders a run for people and machines: HTML, Markdown, JSON and JUnit properties.

A report reads the values handed to it and opens no store; it can always be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfsuite.files import inside, refusing, replace_file
from perfsuite.model import Run
from perfsuite.report import render, summary
from perfsuite.report.benchmark import benchmark_json
from perfsuite.report.book import Book, read
from perfsuite.report.decision import verdict_json
from perfsuite.report.github import append_summary, commands_of
from perfsuite.report.junit import properties, suite_properties

__all__ = [
    "FILES",
    "PAGE",
    "VERDICT",
    "append_summary",
    "commands_of",
    "properties",
    "suite_properties",
    "write_beside",
    "write_report",
]

VERDICT, PAGE = "verdict.json", "index.html"
# What programs read comes first: whatever becomes of the rest.
FILES = {
    VERDICT: verdict_json,
    "benchmark.json": benchmark_json,
    "summary.md": summary.summary,
    PAGE: render.render,
}


def write_report(book: Book, folder: Path, *names: str) -> Path:
    """Write ``folder/<run id>/`` with the page, Markdown and JSON, or these files; return the last.

    Raises StoreError where the folder cannot be written.
    """
    run = book.run.id
    remedy = f"make the folder writable, then: perfsuite report {run}"
    for name in names or FILES:
        data = FILES[name](book).encode("utf-8", "replace")
        with refusing("cannot write the report", folder / run, remedy=remedy):
            path = replace_file(inside(folder, run, name), data)
    return path


def write_beside(runs: Sequence[Run], folder: Path) -> Path:
    """Write one page that compares runs of several SKUs, in a folder of its own; return it.

    Raises StoreError where the folder cannot be written.
    """
    text = render.render_beside([read(run, baselines={}) for run in runs])
    path = inside(folder, f"{runs[0].id}-beside-{len(runs) - 1}", "index.html")
    with refusing("cannot write the report", path, remedy="make the folder writable"):
        replace_file(path, text.encode("utf-8", "replace"))
    return path
