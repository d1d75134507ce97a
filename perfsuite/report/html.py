"""The page as HTML in one file that needs nothing else, and refuses to load anything else."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from jinja2 import Environment
from markupsafe import Markup, escape

from perfsuite.hooks import added
from perfsuite.model import Run
from perfsuite.report import data
from perfsuite.report.data import RunView, VariantView, read
from perfsuite.report.text import summary, templates, verdict_json
from perfsuite.store.files import inside, refusing, replace_file

_CODE = re.compile(r"(`{1,2})(?!`)([^`]+)\1(?!`)")
# A browser lays out what is in sight, so many rows at a time.
CHUNK = 25
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inline:
    """A file of ours that stands in the page, with the hash that lets a browser use it."""

    text: Markup
    hash: str


def render_page(run_view: RunView) -> str:
    """Return a run as one self-contained HTML page."""
    charts = {one.anchor: chart for one in run_view.full if (chart := _charts(one))}
    # Where each variant stands: what the script needs of its Place, its tone and its text.
    places = {
        one.anchor: (*one.place[:5], one.mark.tone, f"{one.variant.id}: {one.place.said}")
        for one in run_view.variants
        if one.place
    }
    known = (
        (run_view.peaks.links, run_view.peaks.operations)
        if not run_view.peaks.is_generic
        else ({}, {})
    )
    links, operations = (
        {name: (rate.value, rate.measured) for name, rate in rates.items()} for rates in known
    )
    drawn = {"variants": charts, "places": places, "links": links, "operations": operations}
    return _page("page.html.j2", run_view=run_view, run=run_view.run, charts=drawn)


def _charts(one: VariantView) -> dict[str, Any]:
    """Return what the script draws of a variant: its blocks as measured."""
    found: dict[str, Any] = {}
    blocks = [(block, process.slot) for process in one.evidence for block in process.blocks]
    if any(block.time_us for block, _ in blocks):
        found["turns"] = [
            (
                slot,
                block.start_s,
                block.time_us,
                block.cycles,
                block.health and (block.health.power_w, block.health.temperature_c),
            )
            for block, slot in blocks
        ]
    return found


def render_beside(run_views: Sequence[RunView]) -> str:
    """Return several runs, most of another SKU each, as one page that compares them."""
    slugs = [run_view.run.sku.slug for run_view in run_views]
    is_distinct = len(set(slugs)) == len(slugs)
    facts = _across([data.everything(run_view.run.facts) for run_view in run_views])
    return _page(
        "beside.html.j2",
        run_views=run_views,
        names=slugs if is_distinct else [run_view.run.id for run_view in run_views],
        # The runs of one SKU could be judged against each other.
        is_of_one=len(set(slugs)) == 1,
        variants=_across([{one.variant.id: one for one in run_view.ran} for run_view in run_views]),
        claims=_across(
            [{one.verdict.claim: one for one in run_view.claims} for run_view in run_views]
        ),
        differences={name: held for name, held in facts.items() if len(set(held)) > 1},
        charts={},
    )


def _across(sides: Sequence[Mapping[str, T]]) -> dict[str, list[T | None]]:
    return {name: [side.get(name) for side in sides] for each in sides for name in each}


def _sortable(values: Sequence[float | None]) -> str:
    """Return values as the page's script sorts by them: a dash stands behind every number."""
    return " ".join("-" if value is None else f"{value:.5g}" for value in values)


def _page(name: str, **values: object) -> str:
    uplot = "vendor/uplot/uPlot"
    styles = [inline(f"{uplot}.min.css"), inline("style.css")]
    scripts = [inline(f"{uplot}.iife.min.js"), inline("charts.js"), inline("app.js")]
    return environment().get_template(name).render(styles=styles, scripts=scripts, **values)


VERDICT, PAGE = "verdict.json", "index.html"
# What programs read comes first: whatever becomes of the rest.
FILES: Mapping[str, Callable[[RunView], str]] = {
    VERDICT: verdict_json,
    "summary.md": summary,
    PAGE: render_page,
}


def files() -> Mapping[str, Callable[[RunView], str]]:
    """Return what makes each file of a report, those of the features first."""
    return {**added("perf_files"), **FILES}


def write_report(run_view: RunView, folder: Path, *names: str) -> Path:
    """Write ``folder/<run id>/`` with the page, Markdown and JSON, or these files; return the last.

    Raises StoreError where the folder cannot be written.
    """
    remedy = f"make the folder writable, then: perfsuite report {run_view.run.id}"
    every = files()
    for name in names or every:
        text = every[name](run_view).encode("utf-8", "replace")
        with refusing("cannot write the report", folder / run_view.run.id, remedy=remedy):
            path = replace_file(inside(folder, run_view.run.id, name), text)
    return path


def write_beside(runs: Sequence[Run], folder: Path) -> Path:
    """Write one page that compares runs of several SKUs, in a folder of its own; return it.

    Raises StoreError where the folder cannot be written.
    """
    text = render_beside([read(run, baselines={}) for run in runs])
    path = inside(folder, f"{runs[0].id}-beside-{len(runs) - 1}", "index.html")
    with refusing("cannot write the report", path, remedy="make the folder writable"):
        return replace_file(path, text.encode("utf-8", "replace"))


def prose(text: str) -> list[Markup]:
    """Return a docstring by paragraph, what stands in backticks as code; all else stays text."""
    # Escaped first, so that nothing of the text is markup but these two tags.
    marked = _CODE.sub(r"<code>\2</code>", str(escape(text)))
    return [Markup(part) for part in re.split(r"\n\s*\n", marked) if part.strip()]  # noqa: S704


@cache
def inline(name: str) -> Inline:
    """Return one of the report's own static files; its hash is what the page's policy allows."""
    text = resources.files("perfsuite.report").joinpath("static", name).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Inline(Markup(text), f"sha256-{digest}")  # noqa: S704 - our own file, not data


@cache
def environment() -> Environment:
    """Return the templates with what they may call."""
    found = templates()
    found.filters |= {
        "prose": prose,
        "median": median,
        "sortable": _sortable,
        "log": lambda value, base: math.log(value / base),
    }
    found.globals["CHUNK"] = CHUNK
    return found
