"""The page as HTML in one file that needs nothing else, and refuses to load anything else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfsuite.hooks import added
from perfsuite.judge.peaks import Rate
from perfsuite.model import Run, Series
from perfsuite.report import data, view, why
from perfsuite.report.data import RunView, VariantView, read
from perfsuite.report.text import summary, verdict_json
from perfsuite.store.files import inside, refusing, replace_file

_T = TypeVar("_T")
_CODE = re.compile(r"(`{1,2})(?!`)([^`]+)\1(?!`)")
# A browser lays out what is in sight, so many rows at a time.
CHUNK = 25


@dataclass(frozen=True, slots=True)
class Inline:
    """A file of ours that stands in the page, with the hash that lets a browser use it."""

    text: Markup
    hash: str


def render_page(book: RunView) -> str:
    """Return a run as one self-contained HTML page."""
    charts: dict[str, Any] = {}
    for one in book.full:
        charts |= {f"{one.anchor}/{name}": chart for name, chart in _charts(one)}
    places = [one for one in book.variants if one.place]
    on_plane = [one for one in places if one.place and one.place.is_on_plane]
    charts |= {"plane": roof(on_plane)} if on_plane else {}
    links = sorted({one.place.link for one in places if one.place and not one.place.dtype})
    for link in links:
        of_link = [p for p in places if p.place and p.place.link == link and not p.place.dtype]
        charts[f"link/{link}"] = roof(of_link)
    return _page("page.html.j2", book=book, run=book.run, places=places, links=links, charts=charts)


def render_beside(books: Sequence[RunView]) -> str:
    """Return several runs, each of another SKU, as one page that compares them."""
    slugs = [book.run.sku.slug for book in books]
    names = [
        slug if slugs.count(slug) == 1 else f"{slug}, {book.run.id}"
        for slug, book in zip(slugs, books, strict=True)
    ]
    is_of_one = len(set(slugs)) == 1
    facts = _across(books, lambda book: data.everything(book.run.facts))
    return _page(
        "beside.html.j2",
        books=books,
        # The runs of one SKU could be judged against each other.
        is_of_one=is_of_one,
        names=[book.run.id for book in books] if is_of_one else names,
        variants=_across(books, lambda book: {one.variant.id: one for one in book.ran}),
        claims=_across(books, lambda book: {one.verdict.claim: one for one in book.claims}),
        differences={name: held for name, held in facts.items() if len(set(held)) > 1},
        charts={},
    )


def roof(views: Sequence[VariantView]) -> dict[str, Any]:
    """Return variants under their ceilings, as the page's script draws them.

    A point is operations per byte (None without operations), rate now and before, tone and text.
    """
    peaks = views[0].peaks
    places = [(one, one.place) for one in views if one.place]
    links = {place.link: peaks.links.get(place.link) for _, place in places}
    rates: dict[Rate, list[str]] = {}
    for dtype in sorted({place.dtype for _, place in places if place.dtype}):
        if dtype in peaks.operations:
            rates.setdefault(peaks.operations[dtype], []).append(dtype)
    named = {", ".join(names): rate for rate, names in rates.items()}
    return {
        "points": [
            [
                place.intensity if place.is_on_plane else None,
                place.rate,
                place.before,
                one.mark.tone,
                f"{one.variant.id}: {place.said}",
            ]
            for one, place in places
        ],
        "links": [] if peaks.is_generic else _ceilings(links, "B/s"),
        "operations": [] if peaks.is_generic else _ceilings(named, "FLOP/s"),
    }


def _ceilings(rates: Mapping[str, Rate | None], unit: str) -> list[tuple[str, float, bool]]:
    return [
        (f"{name} {view.flow(rate.value, unit)}", rate.value, rate.measured)
        for name, rate in sorted(rates.items())
        if rate
    ]


def turns(one: VariantView) -> list[tuple[Any, ...]]:
    """Return slot, times, cycles, power and temperature of each block, in the order measured."""
    blocks = [(block, process.slot) for process in one.evidence for block in process.blocks]
    return [
        (
            slot,
            block.time_us,
            block.cycles,
            health and health.power_w,
            health and health.temperature_c,
        )
        for block, slot in sorted(blocks, key=lambda turn: turn[0].start_s)
        if block.time_us
        for health in [block.health]
    ]


def past(series: Series | None) -> dict[str, Any] | None:
    """Return what earlier runs say of a variant, drawn and in words; None where there are none."""
    if series is None or len(series.valid) < 2:  # noqa: PLR2004 - one point is no history
        return None
    shown = [point for point in series.points if point.center is not None]
    # The acceptances since the first point, and the one that held then.
    earlier = [move for move in series.moves if move.accepted < shown[0].started]
    moves = [*earlier[-1:], *series.moves[len(earlier) :]]
    centers = [point.center for point in series.valid if point.center is not None]
    unit, changes = series.key.unit, series.change_points or ()
    events = [
        (each.started, f"level shifted by {view.shift(each, unit)}; {view.commits(each)}")
        for each in changes
    ]
    for each in moves:
        level = view.amount(each.center, unit)
        events.append((each.accepted, f"baseline accepted at {level} by {each.by}: {each.reason}"))
    return {
        "events": [(view.moment(when), what) for when, what in sorted(events, reverse=True)],
        "metric": series.key.metric,
        "count": len(shown),
        "left_out": len(series.points) - len(series.valid),
        "ends": [view.amount(end(centers), unit) for end in (min, max)],
        "chart": {
            "name": series.key.metric,
            "unit": unit,
            "labels": [(point.run, point.started, view.commit(point.commit)) for point in shown],
            "runs": list(range(len(shown))),
            "centers": [point.center for point in shown],
            "not": {at: p.why_not for at, p in enumerate(shown) if not p.is_valid},
            "changes": [each.run for each in changes],
            "levels": [
                (sum(point.started < each.accepted for point in shown), each.center)
                for each in moves
            ],
        },
    }


def write_report(book: RunView, folder: Path, *names: str) -> Path:
    """Write ``folder/<run id>/`` with the page, Markdown and JSON, or these files; return the last.

    Raises StoreError where the folder cannot be written.
    """
    run = book.run.id
    remedy = f"make the folder writable, then: perfsuite report {run}"
    every = files()
    for name in names or every:
        text = every[name](book).encode("utf-8", "replace")
        with refusing("cannot write the report", folder / run, remedy=remedy):
            path = replace_file(inside(folder, run, name), text)
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
    found = Environment(
        loader=PackageLoader("perfsuite.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"prose": prose, "median": median}
    found.globals |= {"view": view, "why": why, "data": data, "CHUNK": CHUNK}
    found.globals |= {"turns": turns, "past": past}
    return found


def _charts(one: VariantView) -> Iterator[tuple[str, Any]]:
    if measured := turns(one):
        yield "turns", measured
    if known := past(one.history):
        yield "past", known["chart"]
    if one.place and one.place.ceiling and (one.place.is_on_plane or not one.place.dtype):
        yield "roof", roof([one])


def _page(name: str, **values: object) -> str:
    vendored = "vendor/uplot/uPlot"
    styles = [inline(f"{vendored}.min.css"), inline("style.css")]
    scripts = [inline(f"{vendored}.iife.min.js"), inline("charts.js"), inline("app.js")]
    return environment().get_template(name).render(styles=styles, scripts=scripts, **values)


def _across(
    books: Iterable[RunView], of: Callable[[RunView], Mapping[str, _T]]
) -> dict[str, list[_T | None]]:
    sides = [of(book) for book in books]
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: [side.get(name) for side in sides] for name in names}
