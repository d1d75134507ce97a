"""Renders a run for people and machines: HTML, Markdown, JSON and JUnit properties.

A report reads the values handed to it and opens no store; it can always be made again.
"""

from __future__ import annotations

from pathlib import Path

from perfsuite.files import refusing, replace_file
from perfsuite.report import render, summary
from perfsuite.report.benchmark import benchmark_json
from perfsuite.report.book import Book
from perfsuite.report.decision import verdict_json
from perfsuite.report.github import append_summary, commands_of
from perfsuite.report.junit import properties, suite_properties

__all__ = ["append_summary", "commands_of", "properties", "suite_properties", "write_report"]

FILES = {
    "summary.md": summary.summary,
    "verdict.json": verdict_json,
    "benchmark.json": benchmark_json,
    "index.html": render.render,
}


def write_report(book: Book, folder: Path) -> Path:
    """Write ``folder/<run id>/`` with the page, Markdown and JSON; return the page.

    Raises StoreError where the folder cannot be written.
    """
    place = folder / book.run.id
    remedy = f"make the folder writable, then: perfsuite report {book.run.id}"
    with refusing("cannot write the report", place, remedy=remedy):
        for name, text in FILES.items():
            replace_file(place / name, text(book).encode("utf-8", "replace"))
    return place / "index.html"
