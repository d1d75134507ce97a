"""The page as HTML in one file that needs nothing else, and refuses to load anything else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfsuite.report import (
    charts,
    claims,
    coverage,
    detail,
    facts,
    filters,
    history,
    kernels,
    marks,
    metrics,
    page,
    plots,
    roof,
    view,
    why,
)
from perfsuite.report.beside import Matrix
from perfsuite.report.book import Book

_CODE = re.compile(r"(`{1,2})(?!`)([^`]+)\1(?!`)")


@dataclass(frozen=True, slots=True)
class Inline:
    """A file of ours that stands in the page, with the hash that lets a browser use it."""

    text: Markup
    hash: str


def render(book: Book) -> str:
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
    rooms = (claims, coverage, detail, facts, filters, history, kernels, marks, metrics, page)
    for room in (*rooms, plots, roof, view, why):
        found.globals[room.__name__.rpartition(".")[2]] = room
    return found
