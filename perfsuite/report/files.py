"""A run as files: its page, Markdown and JSON; and as JUnit's properties and GitHub's annotations.

The page needs nothing else, and refuses to load anything else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfsuite.boundary import plain
from perfsuite.hooks import added
from perfsuite.model import ClaimVerdict, Result, Section, Verdict
from perfsuite.report import data, view
from perfsuite.report.data import MOST_WHY, Measured, RunView, VariantView
from perfsuite.report.groups import Group, advice, groups_of
from perfsuite.report.view import Mark
from perfsuite.store.files import encode, inside, opened, refusing, replace_file, schema_of

# Of verdict.json: a new key is no new schema, another meaning is.
SCHEMA = 2
# A summary has as many rows as are read; the page has all.
MOST_ROWS = 10
# GitHub and GitLab refuse a longer comment, some thousand characters further on.
MOST_CHARACTERS = 60_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>@$])")
# A character of no width keeps these from becoming links, mentions, references and pictures.
_ACTIVE = re.compile(r"://|@|#|www(?=\.)|:(?=[\w+-]+:)")
# GitHub shows this many annotations of a kind for a step, and this much of a step's summary.
MOST, MOST_BYTES = 10, 1024 * 1024
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = _DATA | str.maketrans({":": "%3A", ",": "%2C"})

Property = tuple[str, str | float]
# What JUnit is told of a change.
FIELDS = ("current", "unit", "baseline", "theta", "low", "high", "threshold", "gate")
ENDS = ("", "_unit", "_baseline", "_change", "_change_low", "_change_high", "_threshold", "_gate")
_CODE = re.compile(r"(`{1,2})(?!`)([^`]+)\1(?!`)")
# A browser lays out what is in sight, so many rows at a time.
CHUNK = 25

T = TypeVar("T")


def render_page(run_view: RunView) -> str:
    """Return a run as one self-contained HTML page."""
    processes = {one.anchor: found for one in run_view.full if (found := list(_processes(one)))}
    # Where each variant stands: what the script needs of its Place, its tone and its text.
    places = {
        one.anchor: (*one.place[:5], one.mark.tone, f"{one.variant.id}: {one.place.said}")
        for one in (run_view.full if run_view.is_lean else run_view.variants)
        if one.place
    }
    # What rows are filtered by is added by the table.
    drawn: dict[str, Any] = {"places": places, "processes": processes, "kinds": []}
    peaks = run_view.peaks
    for name, rates in (("links", peaks.links), ("operations", peaks.operations)):
        known = {each: (rate.value, rate.measured) for each, rate in rates.items()}
        drawn[name] = {} if peaks.is_generic else known
    return _page(
        "page.html.j2",
        run_view=run_view,
        groups=[group for group in groups_of(run_view) if not group.mark.is_quiet],
        steps=[*advice(run_view)],
        charts=drawn,
    )


def _processes(one: VariantView) -> Iterator[tuple[Any, ...]]:
    """Yield the processes of a variant with their blocks as they were measured, for the script."""
    for each in one.processes:
        blocks = []
        for block in each.evidence.blocks if each.evidence else ():
            # Cycles per microsecond are megahertz, of exactly the window that was timed.
            pairs = zip(block.cycles, block.time_us, strict=False) if each.tone == "now" else ()
            clocks = _fine(cycles / (time or math.inf) for cycles, time in pairs)
            health = block.health and (block.health.power_w, block.health.temperature_c)
            if block.time_us:
                blocks.append((_fine(block.time_us), block.start_s, clocks, health))
        slot = each.evidence.slot if each.evidence else 0
        yield each.label, each.tone, slot, blocks, _fine(each.middles)


def _fine(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def render_beside(run_views: Sequence[RunView]) -> str:
    """Return several runs, most of another SKU each, as one page that compares them."""
    return _page(
        "beside.html.j2",
        run_views=run_views,
        names=names_of(run_views),
        variants=across([{one.id: one for one in each.ran} for each in run_views]),
        claims=across([{one.verdict.claim: one for one in each.claims} for each in run_views]),
        facts=across([data.everything(run_view.run.facts) for run_view in run_views]),
        charts={},
    )


def names_of(run_views: Sequence[RunView]) -> list[str]:
    """Return what tells runs apart: their SKUs, else their ids."""
    slugs = [run_view.run.sku.slug for run_view in run_views]
    return slugs if len({*slugs}) == len(slugs) else [run_view.run.id for run_view in run_views]


def across(sides: Sequence[Mapping[str, T]]) -> dict[str, list[T | None]]:
    """Return what each side has of each name."""
    return {name: [side.get(name) for side in sides] for each in sides for name in each}


def spot(value: float, unit: float = 0.0025) -> int:
    """Return where a bar shows a change, from -70 to 70; it ends at 100 %, linear up to unit."""
    return round(70 * max(-1, min(1, math.asinh(value / unit) / math.asinh(1 / unit))))


def _page(name: str, **values: object) -> str:
    uplot = "vendor/uplot/uPlot"
    styles = [inline(f"{uplot}.min.css"), inline("style.css")]
    scripts = [inline(f"{uplot}.iife.min.js"), inline("charts.js"), inline("app.js")]
    return environment().get_template(name).render(styles=styles, scripts=scripts, **values)


def prose(text: str) -> list[Markup]:
    """Return a docstring by paragraph, what stands in backticks as code; all else stays text."""
    # Escaped first, so that nothing of the text is markup but these two tags.
    marked = _CODE.sub(r"<code>\2</code>", str(escape(text)))
    return [Markup(part) for part in re.split(r"\n\s*\n", marked) if part.strip()]  # noqa: S704


@cache
def inline(name: str) -> tuple[Markup, str]:
    """Return one of the report's own static files, and the hash that lets a browser use it."""
    text = resources.files("perfsuite.report").joinpath("static", name).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"  # noqa: S704 - our own file, not data


@cache
def environment() -> Environment:
    """Return the templates with what they may call."""
    found = templates()
    found.filters |= {
        "prose": prose,
        "median": median,
        "spot": spot,
        # As the page's script sorts by them: a dash stands behind every number.
        "sortable": lambda values: " ".join("-" if v is None else f"{v:.5g}" for v in values),
        "log": lambda value, base: math.log(value / base),
    }
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    found.globals["CHUNK"] = CHUNK
    return found


def templates(
    escaped: Callable[[str], str] | None = None, package: str = "perfsuite.report"
) -> Environment:
    """Return a package's templates, which escape what they are given: as HTML, or so."""

    def finalize(value: object) -> object:
        if escaped is None or isinstance(value, Markup):
            return value
        return Markup(escaped(str(value)))  # noqa: S704

    found = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"view": view, "data": data}
    return found


@dataclass(frozen=True, slots=True)
class Decided:
    """How one variant ended: a verdict's word, or its status where there is no verdict.

    ``why`` says what a change is made of, where that is known; ``fails`` whether it fails the run;
    ``verdict`` has the changes behind the word, ``metrics`` what is no clock.
    """

    variant: str
    word: str
    reason: str
    why: str
    fails: bool
    verdict: Verdict | None
    metrics: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a run, the variants that need a reader first.

    Changes are relative (0.02 is 2 % worse), times in the unit that stands beside them.
    """

    schema: int
    run: str
    sku: str
    commit: str
    started: str
    compared_with: str
    headline: str
    fails: bool
    counts: Mapping[str, int]
    variants: tuple[Decided, ...]
    claims: tuple[ClaimVerdict, ...]
    notes: tuple[str, ...]
    gaps: tuple[str, ...]
    sections: tuple[Section, ...] = ()


def verdict_json(run_view: RunView) -> str:
    """Return the outcome of a run for scripts; docs/verdict.md says what is in it."""
    run = run_view.run
    decision = Decision(
        schema=SCHEMA,
        run=run.id,
        sku=run.sku.slug,
        commit=run.commit,
        started=run.started,
        compared_with=run_view.source,
        headline=run_view.headline,
        fails=run_view.fails,
        counts=dict(sorted(run_view.counts.items())),
        variants=tuple(
            Decided(o.id, o.mark.word, o.reason, o.explanation.text, o.fails, o.verdict, o.measured)
            for o in run_view.variants
        ),
        claims=run.claims,
        notes=run.notes,
        gaps=tuple(run_view.gaps),
        sections=run_view.sections,
    )
    return encode(decision).decode() + "\n"


def json_schema() -> str:
    """Return the JSON Schema that docs/verdict.schema.json is a copy of."""
    return schema_of(Decision, title="perfsuite verdict.json", version=SCHEMA)


def summary(run_view: RunView) -> str:
    """Return a run as Markdown for a CI step: its answer, ten rows of a table, the rest folded.

    Data is escaped, never markup.
    """
    return _markdown(run_view, MOST_ROWS)


def comment(run_view: RunView) -> str:
    """Return a run as a comment: its answer, and what needs a reader as far as there is room."""
    texts = (_markdown(run_view, rows, is_comment=True) for rows in range(MOST_ROWS, -1, -1))
    return next(text for text in texts if len(text) < MOST_CHARACTERS)


def _markdown(run_view: RunView, rows: int, *, is_comment: bool = False) -> str:
    told = [_row(each) for each in groups_of(run_view)]
    told += [(o.mark, o.verdict.claim, o.outcome, o.verdict.reason) for o in run_view.broken]
    # What fails or is in doubt stands before a broken claim, what is only faster behind it.
    told.sort(key=lambda row: not row[0].is_urgent)
    page = markdown_templates().get_template("summary.md.j2")
    return page.render(run_view=run_view, told=told, most=rows, is_comment=is_comment)


def _row(group: Group) -> tuple[Mark, str, str, str]:
    """Return what a group is, how much it changed and why."""
    much = "; ".join(filter(None, [group.outcome, group.failing, group.rest]))
    return group.mark, group.alike.name, much, group.cause


@cache
def markdown_templates() -> Environment:
    """Return our templates of Markdown, which escape what they are given."""
    found = templates(in_markdown)
    found.filters["short"] = lambda text: text if len(text) <= MOST_WHY else f"{text[:MOST_WHY]} …"
    found.globals["MOST_ROWS"] = MOST_ROWS
    return found


def in_markdown(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    line = " ".join(text.replace("&", "&amp;").split())
    active = _ACTIVE.sub(lambda found: f"{found[0][0]}&#8203;{found[0][1:]}", line)
    escaped = _SPECIAL.sub(r"\\\1", active).replace("&\\#8203;", "&#8203;")
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


VERDICT, PAGE = "verdict.json", "index.html"
# What programs read comes first: whatever becomes of the rest.
FILES: Mapping[str, Callable[[RunView], str]] = {
    VERDICT: verdict_json,
    "comment.md": comment,
    "summary.md": summary,
    PAGE: render_page,
}


def files() -> Mapping[str, Callable[[RunView], str]]:
    """Return what makes each file of a report, those of the features first."""
    return {**added("perf_files"), **FILES}


def trends_of(sku: str) -> str:
    """Return the name of the page of a SKU's trends, which stands beside the reports' folders."""
    return f"trends-{view.slug(sku)}.html"


def write_report(run_view: RunView, folder: Path, *names: str) -> Path:
    """Write ``folder/<run id>/`` with the page, Markdown and JSON, or these files; return the last.

    Raises StoreError where the folder cannot be written.
    """
    remedy = f"make the folder writable, then: perfsuite report {run_view.run.id}"
    every, trends = files(), trends_of(run_view.run.sku.slug)
    if (folder / trends).is_file():
        run_view = replace(run_view, trends=f"../{trends}")
    for name in names or every:
        text = every[name](run_view).encode("utf-8", "replace")
        with refusing("cannot write the report", folder / run_view.run.id, remedy=remedy):
            path = replace_file(inside(folder, run_view.run.id, name), text)
    return path


def properties(result: Result | None, verdict: Verdict | None) -> list[Property]:
    """Return what a test case carries; changes are relative, times in microseconds."""
    found: dict[str, str | float] = {}
    if result is not None:
        found |= {"perf_status": result.status.value, "perf_processes": len(result.evidence)}
        found["perf_reason"] = result.reason
    if verdict is not None:
        found |= {"perf_verdict": verdict.word.value, "perf_reason": verdict.reason}
        found["perf_compared_with"] = verdict.source
        if told := verdict.excepted:
            found |= {"perf_excepted": told.kind, "perf_excepted_until": told.until}
            found |= {"perf_excepted_reason": told.reason, "perf_excepted_issue": told.issue}
        for change in verdict.changes:
            values = (getattr(change, name) for name in FIELDS)
            found |= zip((f"perf_{change.metric}{end}" for end in ENDS), values, strict=True)
    return [(name, value) for name, value in found.items() if value != ""]


def claim_properties(verdict: ClaimVerdict) -> list[Property]:
    """Return what the test case of a claim carries."""
    found: list[Property] = [("perf_claim", verdict.word.value), ("perf_reason", verdict.reason)]
    found.append(("perf_ratio_required", verdict.required))
    return found if verdict.ratio is None else [*found, ("perf_ratio", verdict.ratio)]


def suite_properties(run_view: RunView) -> list[Property]:
    """Return what the suite carries: which run it was, on what, and how it ended."""
    run, found = run_view.run, dict[str, str | float]()
    found |= {"perf_run": run.id, "perf_started": run.started, "perf_sku": run.sku.slug}
    found |= {"perf_device": run.facts.name, "perf_commit": run.commit}
    found |= {"perf_compared_with": run_view.source, "perf_outcome": run_view.headline}
    return [*found.items(), *((f"perf_count_{m.word}", count) for m, count in run_view.tallies)]


def commands_of(run_view: RunView, *, here: Path, workspace: Path) -> Iterator[str]:
    """Yield GitHub's workflow commands: errors for what fails, warnings for what needs a reader.

    ``here`` is what the cases' paths are relative to, ``workspace`` the checkout on GitHub. The
    most important come first; what is more than GitHub shows is one that says how many they are.
    """
    found: dict[str, list[str]] = {"error": [], "warning": []}
    root = workspace.resolve()
    for fails, title, message, file, line in _annotations(run_view):
        kind, path = "error" if fails else "warning", (here / file).resolve()
        # GitHub names no file that is no part of the checkout.
        is_inside = file and path.is_file() and path.is_relative_to(root)
        place = {"file": path.relative_to(root).as_posix(), "line": str(line)} if is_inside else {}
        told = {**place, "title": title}.items()
        pairs = ",".join(f"{name}={plain(text).translate(_PROPERTY)}" for name, text in told)
        found[kind].append(f"::{kind} {pairs}::{plain(message).translate(_DATA)}")
    for kind, lines in found.items():
        if more := max(0, len(lines) - MOST):
            rest = f"and {more + 1} more: see the step's summary"
            lines[MOST - 1 :] = [f"::{kind} title=perfsuite::{rest}"]
        yield from lines


def _annotations(run_view: RunView) -> Iterator[tuple[bool, str, str, str, int]]:
    """Yield whether it fails, title, message, file and line of all that needs a reader."""
    if run_view.unmeasured:
        yield True, "not measured", run_view.unmeasured, "", 0
    for group in groups_of(run_view):
        if group.failing or group.mark.is_urgent:
            case, (mark, name, much, why) = group.first.variant.case, _row(group)
            yield bool(group.failing), f"{name}: {much}", why or mark.meaning, case.file, case.line
    for one in run_view.broken:
        told, claim = one.verdict, one.instance
        much = f"{one.outcome.removeprefix('broken: ')}; {told.reason}"
        yield told.fails, f"broken: {told.claim}", much, claim.file, claim.line


def append_summary(run_view: RunView, path: Path) -> None:
    """Append the run's Markdown to the file of a step's summary, if it has room."""
    with opened(path, "ab") as file:
        text = summary(run_view).encode("utf-8", "replace")
        # GitHub shows nothing of a summary that is too large: better that of earlier steps alone.
        file.write(text if file.tell() + len(text) <= MOST_BYTES else b"")
