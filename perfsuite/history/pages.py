"""The history on the command line and on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps, loads
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from markupsafe import Markup
from typer.core import TyperGroup

from perfsuite.boundary import PerfError, UsageError
from perfsuite.model import Point, Series
from perfsuite.report import html as render
from perfsuite.report import view
from perfsuite.run.project import Project, find_project, say, say_table
from perfsuite.run.run import why
from perfsuite.store.codec import encode
from perfsuite.store.files import refusing, replace_file

if TYPE_CHECKING:
    from perfsuite.history.store import History


# The commands about the history of many runs.


NEW, OLD = "stored", "was there already"
BARS = "▁▂▃▄▅▆▇█"
_DAYS = re.compile(r"(\d+)d\Z")


class _VariantFirst(TyperGroup):
    """A group whose first word may be a variant instead of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in that shows a variant where none is named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        return super().parse_args(ctx, args)


history = typer.Typer(
    cls=_VariantFirst,
    help='The runs of years: perfsuite history "VARIANT" [--metric, --last, --json], or a command.',
    no_args_is_help=True,
)
Metric = Annotated[str, typer.Option(metavar="NAME", help="As in reports; default: the time")]


@history.command()
def show(
    variant: Annotated[str, typer.Argument(help="The id, as in reports")],
    metric: Metric = "",
    last: Annotated[int, typer.Option(min=1, help="So many runs, the newest")] = 30,
    *,
    json: Annotated[bool, typer.Option("--json", help="All that is known, for programs")] = False,
) -> None:
    """Show a variant's past: its level, since when, what was accepted. "show" may be left out."""
    with open_history(find_project().root) as store:
        from perfsuite.history.store import series_of, variants_like

        found = series_of(store, variant, metric=metric)
        say_notes(store)
        if not found:
            near = variants_like(store, variant.partition("[")[0])
            raise UsageError(
                f"no run of {variant!r} is stored" + (f" with metric {metric!r}" if metric else ""),
                where=store.where,
                remedy=f"known are {', '.join(near)}" if near else "perfsuite list names variants",
            )
    if json:
        say(dumps(loads(encode(found))))  # in ASCII: no terminal obeys it
        return
    times = [each for each in found if metric or each.key.metric == "time_us"] or found[:1]
    for each in times:
        _say_series(each, last)
    if others := sorted({each.key.metric for each in found} - {each.key.metric for each in times}):
        say(f"also known, with --metric: {', '.join(others)}")


@history.command("import")
def import_runs(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run files or ids")],
) -> None:
    """Store runs; known ones stay. Exit code 1 if one is refused."""
    project = find_project()
    refused = 0
    with open_history(project.root) as store:
        for name in runs:
            try:
                say(f"{name}: {_import(store, project, name)}")
            except PerfError as error:
                refused += 1
                say(f"{name}: not stored: {error}")
            except Exception as error:  # noqa: BLE001 - it costs no file behind it
                refused += 1
                say(f"{name}: not stored: {why(error)}")
                say("  do: report this with the file, or leave it out")
    raise typer.Exit(1 if refused else 0)


@history.command()
def prune(
    keep_samples: Annotated[
        str, typer.Option(metavar="DAYS", help="Of so many days, as in 90d; estimates all stay")
    ],
) -> None:
    """Drop the samples of old runs."""
    match = _DAYS.match(keep_samples)
    try:
        before = datetime.now(UTC) - timedelta(days=int(match[1] if match else ""))
    except (ValueError, OverflowError):
        raise UsageError(
            f"--keep-samples {keep_samples!r} is no time", remedy="write 90d"
        ) from None
    with open_history(find_project().root) as store:
        count = store.prune(before.isoformat(timespec="seconds"))
    say(f"dropped the samples of {view.count(count, 'point')}")


@history.command()
def trends(
    sku: Annotated[str, typer.Option(help="One SKU; all if left out")] = "",
    last: Annotated[int, typer.Option(min=2, help="So many runs, the newest")] = 90,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeatable")
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where to write")] = Path("reports"),
) -> None:
    """Write a page per SKU: all its series, those first whose level shifted last."""
    with open_history(find_project().root) as store:
        from perfsuite.history.store import skus
        from perfsuite.history.store import trends as read

        known = skus(store)
        if sku and sku not in known:
            raise UsageError(
                f"no run of the SKU {sku!r} is stored",
                where=store.where,
                remedy=f"known are {', '.join(known)}" if known else "measure: pytest --perf",
            )
        for each in [sku] if sku else known:
            found = read(store, each, last=last, metrics=metric or ())
            say(f"wrote {write_trends(each, found, folder)}")
        say_notes(store)


def open_history(root: Path) -> History:
    """Open it; ``UsageError`` where there is none or a library is missing."""
    try:
        from perfsuite.history.store import History, url_of
    except ImportError as error:
        raise UsageError(
            f"a history needs {error.name}", remedy=f"pip install {error.name}"
        ) from error
    url = url_of(root)
    if not url:
        raise UsageError(
            "this project keeps no history", remedy="set perf_history, or PERFSUITE_HISTORY"
        )
    return History(url, root)


def say_notes(store: History) -> None:
    """Say what was damaged of what was read."""
    for note in store.notes:
        say(f"note: {note}", stderr=True)


def _import(store: History, project: Project, name: str) -> str:
    from perfsuite.history.store import moves_of, stored_of

    run = project.load_run(name)
    was_new = store.add(stored_of(run))
    store.add_moves(moves_of(run, project.baseline_roots(None)))
    return NEW if was_new else OLD


def _say_series(series: Series, last: int) -> None:
    shown = series.points[-last:]
    key = series.key
    version = f", version {key.case_version}" if key.case_version > 1 else ""
    say(f"{key.variant}: {key.metric} on {key.sku} ({key.regime}{version})")
    runs = view.count(len({point.run for point in shown}), "run")
    say(f"{_sparkline([p.center for p in shown if p.is_valid])}  of {runs}")
    columns = ("started", "run", "commit", key.metric, "sd between", "verdict", "what happened")
    say_table("", columns, [_row(series, point, shown) for point in shown])
    if series.change_points is None:
        say("change points are not looked for: ruptures is not installed")
    for change in series.change_points or ():
        moved = view.shift(change, key.unit)
        say(f"since {view.moment(change.started)}: {moved}; {view.commits(change)}")


def _row(series: Series, point: Point, shown: Sequence[Point]) -> tuple[str, ...]:
    value = view.NOTHING
    if point.center is not None:
        value = view.amount(point.center, series.key.unit, point.between or None)
    return (
        view.moment(point.started),
        point.run,
        view.commit(point.commit),
        value,
        view.spread(point.between) if point.between else "",
        point.word,
        "; ".join(_happened(series, point, shown)),
    )


def _happened(series: Series, point: Point, shown: Sequence[Point]) -> Iterator[str]:
    if point.why_not:
        yield f"left out: {point.why_not}"
    if not point.part:
        for change in series.change_points or ():
            if change.run == point.run:
                yield f"change point: {view.shift(change, series.key.unit)}"
    later = next((p.started for p in shown if p.started > point.started), "~")
    for move in series.moves:
        if point.started <= move.accepted < later:
            yield f"baseline accepted by {move.by}: {move.reason}"


def _sparkline(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    low, span = min(found, default=0.0), max(found, default=0.0) - min(found, default=0.0)
    top = len(BARS) - 1
    return "".join(BARS[round((value - low) / span * top) if span else top // 2] for value in found)


# The page of a SKU's trends: a row per series with a small chart, and a large one when opened.


SPARK_WIDTH, SPARK_HEIGHT = 160, 24
# What JSON leaves as it is and HTML does not.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def write_trends(sku: str, found: Sequence[Series], folder: Path) -> Path:
    """Write a SKU's page into a folder; raises StoreError where that cannot be written."""
    path = folder / f"trends-{view.slug(sku)}.html"
    with refusing("cannot write the trends", path, remedy="make the folder writable"):
        return replace_file(path, trends_page(sku, found).encode("utf-8", "replace"))


def trends_page(sku: str, found: Sequence[Series]) -> str:
    """Return the page; what shifted last stands first."""
    runs = sorted({(p.started, p.run, p.commit) for each in found for p in each.points})
    places = {run: place for place, (_, run, _) in enumerate(runs)}
    ordered = sorted(found, key=_urgency, reverse=True)
    template = render.environment().get_template("trends.html.j2")
    return template.render(
        sku=sku,
        runs=runs,
        lines=[_line(each, places) for each in ordered],
        shifted=sum(bool(each.change_points) for each in ordered),
        data=_data(ordered, runs, places),
        styles=[render.inline("vendor/uplot/uPlot.min.css"), render.inline("trends.css")],
        scripts=[
            render.inline(name)
            for name in ("vendor/uplot/uPlot.iife.min.js", "charts.js", "trends.js")
        ],
    )


def _urgency(one: Series) -> tuple[str, str]:
    return one.change_points[-1].started if one.change_points else "", one.key.variant


def _line(one: Series, places: Mapping[str, int]) -> dict[str, object]:
    """Return a series as its row shows it."""
    unit, changes = one.key.unit, one.change_points or ()
    last = changes[-1] if changes else None
    centers = [point.center or 0.0 for point in one.valid]
    level = last.after if last else fmean(centers) if centers else None
    tone, moved = "same", ""
    if last:
        is_worse = (last.after > last.before) == (one.key.better == "lower")
        tone = "worse" if is_worse or one.key.better == "equal" else "better"
        half = abs(last.change) / 10
        by = view.percent(last.change, half_width=half) if last.before else "from nothing"
        moved = f"{by} since {view.moment(last.started).partition(' ')[0]}"
    return {
        "key": one.key,
        "spark": _spark(one, places),
        "level": view.NOTHING if level is None else view.amount(level, unit),
        "moved": moved,
        "tone": tone,
        "events": [
            f"{view.moment(change.started)}, run {change.run}: "
            f"{view.shift(change, unit)}; {view.commits(change)}"
            for change in reversed(changes)
        ],
        "left_out": sum(bool(point.why_not) for point in one.points),
    }


def _spark(one: Series, places: Mapping[str, int]) -> Markup:
    if not (valid := one.valid):
        return Markup()
    centers = [point.center or 0.0 for point in valid]
    low, span = min(centers), (max(centers) - min(centers)) or 1.0
    # A page has thousands of these: whole pixels, and no call per point.
    step, height = SPARK_WIDTH / max(1, len(places) - 1), SPARK_HEIGHT - 2
    line = " ".join(
        f"{places[point.run] * step:.0f},{1 + height - (y - low) / span * height:.0f}"
        for point, y in zip(valid, centers, strict=True)
    )
    at = ((places[each.run] - 0.5) * step for each in one.change_points or ())
    rules = "".join(f"M{x:.0f} 0v{SPARK_HEIGHT}" for x in at)
    return Markup(  # noqa: S704 - numbers only
        f'<svg viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" '
        f'height="{SPARK_HEIGHT}" aria-hidden="true"><path d="{rules}"/>'
        f'<polyline points="{line}"/></svg>'
    )


def _data(
    found: Sequence[Series], runs: Sequence[tuple[str, str, str]], places: Mapping[str, int]
) -> Markup:
    """Return what the charts draw as JSON that no text in it can end."""
    told = {
        "runs": [[run, started, view.commit(commit)] for started, run, commit in runs],
        "series": [
            {
                "name": f"{one.key.variant} {one.key.metric}",
                "unit": one.key.unit,
                "runs": [places[point.run] for point in one.points],
                "centers": [point.center for point in one.points],
                "not": {n: point.why_not for n, point in enumerate(one.points) if point.why_not},
                "changes": [change.run for change in one.change_points or ()],
            }
            for one in found
        ],
    }
    text = dumps(told, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))  # noqa: S704 - escaped for where it stands
