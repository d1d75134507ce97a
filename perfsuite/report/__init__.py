"""Renders a run for people and machines: HTML, Markdown, JSON and JUnit properties.

A report reads the values handed to it and opens no store; it can always be made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfsuite.files import refusing, replace_file
from perfsuite.model import BaselineEntry, Run
from perfsuite.report.junit import properties

__all__ = ["html", "markdown", "properties", "write_report"]

Baselines = Mapping[str, BaselineEntry]


def write_report(
    run: Run, *, baselines: Baselines, source: str, folder: Path, previous: Run | None = None
) -> Path:
    """Write ``folder/<run id>/`` with index.html, summary.md and verdict.json; return the page.

    Raises StoreError where the folder cannot be written.

    ``baselines`` are the entries by variant that the run was judged against, ``source`` says in
    words what they are; ``previous`` is the run they come from, if it is at hand.
    """
    from perfsuite.report.book import read
    from perfsuite.report.decision import verdict_json
    from perfsuite.report.render import render
    from perfsuite.report.summary import summary

    book = read(run, baselines=baselines, source=source, previous=previous)
    place = folder / run.id
    remedy = f"make the folder writable, then: perfsuite report {run.id}"
    with refusing("cannot write the report", place, remedy=remedy):
        texts = (
            ("summary.md", summary(book)),
            ("verdict.json", verdict_json(book)),
            ("index.html", render(book)),
        )
        for name, text in texts:
            replace_file(place / name, text.encode("utf-8", "replace"))
    return place / "index.html"


def html(run: Run, *, baselines: Baselines, source: str = "", previous: Run | None = None) -> str:
    """Return a run as one self-contained page."""
    from perfsuite.report.book import read
    from perfsuite.report.render import render

    return render(read(run, baselines=baselines, source=source, previous=previous))


def markdown(
    run: Run, *, baselines: Baselines, source: str = "", previous: Run | None = None
) -> str:
    """Return a run as Markdown: the outcome first, at most 20 rows in sight, the rest folded."""
    from perfsuite.report.book import read
    from perfsuite.report.summary import summary

    return summary(read(run, baselines=baselines, source=source, previous=previous))
