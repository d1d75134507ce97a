"""Writes the files of a report: the page and its companions."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfsuite.interop.benchmark import benchmark_json
from perfsuite.judge.peaks import Peaks
from perfsuite.model import ClaimVerdict, Run
from perfsuite.report import (
    charts,
    plots,
    view,
    why,
)
from perfsuite.report import (
    data as claims,
)
from perfsuite.report import (
    data as coverage,
)
from perfsuite.report import (
    data as detail,
)
from perfsuite.report import (
    data as facts,
)
from perfsuite.report import (
    data as filters,
)
from perfsuite.report import (
    data as marks,
)
from perfsuite.report import (
    data as metrics,
)
from perfsuite.report import (
    data as page,
)
from perfsuite.report import (
    plots as history,
)
from perfsuite.report import (
    plots as roof,
)
from perfsuite.report import (
    text as summary,
)
from perfsuite.report import (
    why as kernels,
)
from perfsuite.report.data import Book, Subject, judged, rate_of, read
from perfsuite.report.text import verdict_json
from perfsuite.store.files import inside, refusing, replace_file

# Runs side by side, each of another SKU: what the same variants and claims are on each.


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant on one SKU; ``ratio`` is how many times faster it is than on the first."""

    text: str
    aside: str
    ratio: str
    mark: marks.Mark | None
    keys: str


@dataclass(frozen=True, slots=True)
class Line:
    """One variant on every SKU, in the order of the runs."""

    variant: str
    anchor: str
    cells: tuple[Cell, ...]

    @property
    def keys(self) -> str:
        """The sort keys: those of the cells behind two columns that have none."""
        return " ".join(("- -", *(cell.keys for cell in self.cells)))


@dataclass(frozen=True)
class Matrix:
    """Several runs as one table each of variants, claims and facts."""

    books: tuple[Book, ...]

    @property
    def names(self) -> list[str]:
        """The columns: the SKUs, told apart by their runs where one stands twice."""
        slugs = [book.run.sku.slug for book in self.books]
        runs = [book.run.id for book in self.books]
        if self.is_of_one_sku:
            return runs
        return [
            slug if slugs.count(slug) == 1 else f"{slug}, {run}"
            for slug, run in zip(slugs, runs, strict=True)
        ]

    @property
    def is_of_one_sku(self) -> bool:
        """Say whether the runs could be judged against each other."""
        return len({book.run.sku.slug for book in self.books}) == 1

    @cached_property
    def lines(self) -> list[Line]:
        """The variants that at least one run has a value of."""
        found = _across(
            self.books,
            lambda book: {one.variant.id: one for one in book.subjects if not one.is_skipped},
        )
        return [
            Line(name, f"b-{index}", tuple(self._cells(held)))
            for index, (name, held) in enumerate(found)
        ]

    @cached_property
    def claims(self) -> list[tuple[str, list[ClaimVerdict | None]]]:
        """The claims of any of the runs."""
        return _across(self.books, lambda book: {one.claim: one for one in book.claims})

    @property
    def differences(self) -> list[tuple[str, list[str | None]]]:
        """The facts of the machines that are not alike."""
        found = _across(self.books, lambda book: facts.everything(book.run.facts))
        return [(name, held) for name, held in found if len(set(held)) > 1]

    def _cells(self, held: Sequence[Subject | None]) -> Iterable[Cell]:
        first = held[0].now() if held[0] else None
        for subject, book in zip(held, self.books, strict=True):
            yield _cell(subject, first, book.peaks) if subject else _NO_CELL


_NO_CELL = Cell(view.NOTHING, "", "", None, "- -")


def _cell(subject: Subject, first: float | None, peaks: Peaks) -> Cell:
    now, counted = subject.now(), judged(subject)
    rate, share = rate_of(subject.variant.work, now, peaks)
    text = view.time(now, subject.digits()) if now else counted.now if counted else view.NOTHING
    asides = (counted.name if counted else "", rate, view.share(share) if share else "")
    ratio = first / now if first and now else None
    return Cell(
        text=text,
        aside=", ".join(one for one in asides if one not in {"", view.NOTHING}),
        ratio=view.ratio(ratio) if ratio else "",
        mark=subject.mark if subject.mark.tone == "fail" else None,
        keys=" ".join("-" if one is None else f"{one:.5g}" for one in (now, ratio)),
    )


def _across(
    books: Iterable[Book], read: Callable[[Book], dict[str, _T]]
) -> list[tuple[str, list[_T | None]]]:
    sides = [read(book) for book in books]
    names = dict.fromkeys(name for side in sides for name in side)
    return [(name, [side.get(name) for side in sides]) for name in names]


# The page as HTML in one file that needs nothing else, and refuses to load anything else.


_CODE = re.compile(r"(`{1,2})(?!`)([^`]+)\1(?!`)")


@dataclass(frozen=True, slots=True)
class Inline:
    """A file of ours that stands in the page, with the hash that lets a browser use it."""

    text: Markup
    hash: str


def render_render(book: Book) -> str:
    """Return a run as one self-contained HTML page."""
    return _page(
        "page.html.j2",
        book=book,
        run=book.run,
        headline=page.headline(book),
        proportions=charts.proportions([(mark.tone, count) for mark, count in book.tallies]),
        sections=page.sections(book),
    )


def render_beside(books: Sequence[Book]) -> str:
    """Return several runs, each of another SKU, as one page that compares them."""
    return _page("beside.html.j2", matrix=Matrix(tuple(books)))


def _page(name: str, **values: object) -> str:
    template = environment().get_template(name)
    return template.render(style=inline("style.css"), script=inline("app.js"), **values)


def prose(text: str) -> Markup:
    """Return a docstring with what stands in backticks as code; all else stays text."""
    # Escaped first, so that nothing of the text is markup but these two tags.
    marked = _CODE.sub(r"<code>\2</code>", str(escape(text)))
    return Markup(marked)  # noqa: S704


@cache
def inline(name: str) -> Inline:
    """Return one of the report's own static files; its hash is what the page's policy allows."""
    text = resources.files("perfsuite.report").joinpath("static", name).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"sha256-{digest}")  # noqa: S704 - our own file, not data


@cache
def environment() -> Environment:
    """Return the templates with what they may call."""
    found = Environment(
        loader=PackageLoader("perfsuite.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["prose"] = prose
    found.globals |= {"plots": plots, "history": history, "roof": roof, "view": view, "why": why}
    found.globals |= {"claims": claims, "coverage": coverage, "detail": detail, "facts": facts}
    found.globals |= {"filters": filters, "marks": marks, "metrics": metrics, "page": page}
    found.globals["kernels"] = kernels
    return found


# Renders a run for people and machines: HTML, Markdown, JSON and JUnit properties.
#
# A report reads the values handed to it and opens no store; it can always be made again.


VERDICT, PAGE = "verdict.json", "index.html"
# What programs read comes first: whatever becomes of the rest.
FILES = {
    VERDICT: verdict_json,
    "benchmark.json": benchmark_json,
    "summary.md": summary.summary,
    PAGE: render_render,
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
    text = render_beside([read(run, baselines={}) for run in runs])
    path = inside(folder, f"{runs[0].id}-beside-{len(runs) - 1}", "index.html")
    with refusing("cannot write the report", path, remedy="make the folder writable"):
        replace_file(path, text.encode("utf-8", "replace"))
    return path
