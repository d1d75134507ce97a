"""Renders a run for people and machines: HTML, Markdown, JSON and JUnit properties.

A report reads the values handed to it and opens no store; it can always be made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfsuite.files import refusing, replace_file
from perfsuite.model import BaselineEntry, Run
from perfsuite.report import render, summary
from perfsuite.report.book import read
from perfsuite.report.decision import verdict_json
from perfsuite.report.junit import properties

__all__ = ["properties", "write_beside", "write_report"]

FILES = {
    "summary.md": summary.summary,
    "verdict.json": verdict_json,
    "index.html": render.render,
}


def write_report(
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    source: str,
    folder: Path,
    previous: Run | None = None,
) -> Path:
    """Write ``folder/<run id>/`` with index.html, summary.md and verdict.json; return the page.

    See ``book.read`` for what the run was judged against. Raises StoreError where the folder
    cannot be written.
    """
    book = read(run, baselines=baselines, source=source, previous=previous)
    place = folder / run.id
    remedy = f"make the folder writable, then: perfsuite report {run.id}"
    with refusing("cannot write the report", place, remedy=remedy):
        for name, text in FILES.items():
            replace_file(place / name, text(book).encode("utf-8", "replace"))
    return place / "index.html"


def write_beside(runs: Sequence[Run], folder: Path) -> Path:
    """Write one page that compares runs of several SKUs, in a folder of its own; return it.

    Raises StoreError where the folder cannot be written.
    """
    text = render.render_beside([read(run, baselines={}) for run in runs])
    path = folder / f"{runs[0].id}-beside-{len(runs) - 1}" / "index.html"
    with refusing("cannot write the report", path, remedy="make the folder writable"):
        replace_file(path, text.encode("utf-8", "replace"))
    return path
