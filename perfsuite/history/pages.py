"""The history on the command line and on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from json import dumps, loads
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from markupsafe import Markup
from typer.core import TyperGroup

from perfsuite.boundary import PerfError, UsageError
from perfsuite.model import CYCLES, TIME
from perfsuite.packs import GRAMMAR
from perfsuite.packs.select import select
from perfsuite.report import files, view
from perfsuite.report.groups import alike
from perfsuite.run.config import Config
from perfsuite.run.project import find_project, say, say_table, stored_run, with_baselines
from perfsuite.run.run import why
from perfsuite.stats import grouped
from perfsuite.store.files import FILE_NAME, encode, refusing, replace_file
from perfsuite.store.git import remote_of

if TYPE_CHECKING:
    from perfsuite.history.store import ChangePoint, History, Point, Series
    from perfsuite.report.data import VariantView

BARS = "▁▂▃▄▅▆▇█"
WORDS = ("slower", "worse", "faster", "better")
# So many shifts one way in a row are no innocent steps.
LEAST_STEPS = 3
SPARK_WIDTH, SPARK_HEIGHT = 160, 24
SPARK_LEAST = 0.05


class _VariantFirst(TyperGroup):
    """A group whose first word may be a variant instead of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in that shows a variant where none is named."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


history = typer.Typer(
    cls=_VariantFirst,
    help='What got slower, since when. Write perfsuite history ["VARIANTS"], or a command.',
)


@history.command()
def show(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help=f"All, or {GRAMMAR}")] = "",
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="A metric as in reports; else the time")
    ] = "",
    last: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many runs of one variant to list")
    ] = 30,
    *,
    json: Annotated[bool, typer.Option("--json", help="All that is known, for programs")] = False,
) -> None:
    """Say what got slower since when; of one variant its runs, too. "show" may be left out."""
    with open_history(find_project().root) as store:
        found = store.series_of(variant, metric=metric) if "[" in variant else []
        metrics = [metric] if metric else []
        known = found or [s for sku in store.skus() for s in store.trends(sku, metrics=metrics)]
        known.sort(key=lambda one: (one.key.metric == TIME.name, one.key.case_version))
        main = {(one.key.sku, one.key.variant): one for one in known}
        names = sorted({name for _, name in main})
        if not names:
            what = "no run is stored" + (f" with metric {metric!r}" if metric else "")
            raise UsageError(what, where=store.where, remedy="measure: pytest --perf")
        names = [*select(names, variant, of=store.where)] if variant else names
        chosen = [one for (_, name), one in main.items() if name in names]
        if not found:
            found = store.series_of(names[0], metric=metric) if len(names) == 1 else chosen
    if json:
        say(dumps(loads(encode(found))))  # in ASCII: no terminal obeys it
        return
    for line in answers(chosen, {one.key.variant for one in known}):
        say(line)
    if len(names) > 1:
        return
    times = [each for each in found if metric or each.key.metric == TIME.name] or found[:1]
    for each in times:
        _say_series(each, last)
    if others := sorted({each.key.metric for each in found} - {each.key.metric for each in times}):
        say(f"also known, with --metric: {', '.join(others)}")


class Move(NamedTuple):
    """Where a series went: by how much (relative) since a change point, in how many steps."""

    series: Series
    change: float
    since: ChangePoint
    steps: int

    @property
    def word(self) -> str:
        """Whether that is worse, in the words of its metric."""
        key = self.series.key
        is_worse = key.better == "equal" or (self.change > 0) == (key.better == "lower")
        words = ("slower", "faster") if key.metric == TIME.name else ("worse", "better")
        return words[not is_worse]


def move_of(series: Series) -> Move | None:
    """Return the last move of a level; shifts one way that follow each other are one drift."""
    points = series.change_points or ()
    if not points:
        return None
    is_up = points[-1].after > points[-1].before
    tail = [*takewhile(lambda one: (one.after > one.before) == is_up, reversed(points))]
    steps = len(tail) if len(tail) >= LEAST_STEPS else 1
    since = tail[steps - 1]
    return Move(series, points[-1].after / since.before - 1 if since.before else inf, since, steps)


def answers(found: Sequence[Series], every: Iterable[str]) -> Iterator[str]:
    """Say what moved together since when, worse first, and last how many variants moved."""
    from perfsuite.history.store import FEWEST

    moves = [move for one in found if (move := move_of(one))]
    alike_of = grouped(
        moves, lambda m: (m.word, m.since.started, m.since.run, m.steps > 1, m.series.key.sku)
    )
    for (word, started, _, is_drift, sku), own in sorted(
        alike_of.items(),
        key=lambda item: (WORDS.index(item[0][0]), -max(abs(move.change) for move in item[1])),
    ):
        by_name = {move.series.key.variant: move for move in own}
        for each in alike(by_name, every):
            members = [by_name[name] for name in each.members]
            sizes = sorted((abs(move.change) for move in members), reverse=True)
            size = " to ".join(dict.fromkeys(view.share(x) for x in (sizes[-1], sizes[0])))
            count = f"{len(members)} of {each.total} " if each.total > 1 else ""
            how = f", in {members[0].steps} steps: a drift" if is_drift else ""
            day = view.moment(started).partition(" ")[0]
            yield (
                f"{each.name}: {count}{word} by {size} since {day} on {sku}{how} "
                f"({commits(members[0].since)})"
            )
    counts = Counter(move.word for move in moves)
    told = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "no shift"
    runs = view.count(len({point.run for one in found for point in one.points}), "run")
    most = max((len(one.valid) for one in found), default=0)
    few = f"; a shift needs {FEWEST} valid runs before it and {FEWEST} after"
    few = few if most < 2 * FEWEST and not moves else ""
    yield f"{told} of {view.count(len(found), 'variant')} in {runs}{few}"


@history.command("import")
def import_runs(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run files or ids")],
) -> None:
    """Store runs; known ones stay. Exit code 1 if one is refused."""
    project = with_baselines(find_project(), None)
    with open_history(project.root) as store:
        are_stored = [_is_stored(store, project, name) for name in runs]
    raise typer.Exit(0 if all(are_stored) else 1)


def _is_stored(store: History, project: Config, name: str) -> bool:
    """Store a run and say so; whatever is wrong with it costs no run behind it."""
    try:
        is_new = store.add(stored_run(project, name), project.baseline_roots)
    except Exception as error:  # noqa: BLE001 - see above
        is_known = isinstance(error, PerfError)
        say(f"{name}: not stored: {error if is_known else why(error)}")
        if not is_known:
            say("  do: report this with the file, or leave it out")
        return False
    say(f"{name}: {'stored' if is_new else 'was there already'}")
    return True


@history.command()
def trends(
    sku: Annotated[str, typer.Option(metavar="SKU", help="One SKU; all if left out")] = "",
    last: Annotated[int, typer.Option(metavar="N", min=2, help="So many runs, the newest")] = 90,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeatable")
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where to write")] = Path("reports"),
) -> None:
    """Write a page of all series of each SKU. What shifted last comes first."""
    root = find_project().root
    with open_history(root) as store:
        known = store.skus()
        if sku and sku not in known:
            raise UsageError(
                f"no run of the SKU {sku!r} is stored",
                where=store.where,
                remedy=f"known are {', '.join(known)}" if known else "measure: pytest --perf",
            )
        for each in [sku] if sku else known:
            found = store.trends(each, last=last, metrics=metric or ())
            say(f"wrote {write_trends(each, found, folder, remote_of(root))}")


def open_history(root: Path) -> History:
    """Open it; ``UsageError`` where there is none."""
    from perfsuite.history.store import History, url_of

    url = url_of(root)
    if not url:
        raise UsageError(
            "this project keeps no history", remedy="set perf_history, or PERFSUITE_HISTORY"
        )
    return History(url, root)


def _say_series(series: Series, last: int) -> None:
    key, shown = series.key, series.points[-last:]
    version = f", version {key.case_version}" if key.case_version > 1 else ""
    say(f"{key.variant}: {key.metric} on {key.sku} ({key.regime}{version})")
    centers = [point.center for point in shown if point.is_valid and point.center is not None]
    low, span = _scale(centers)
    bars = "".join(BARS[int((center - low) / span * (len(BARS) - 1))] for center in centers)
    say(f"{bars}  of {view.count(len(shown), 'run')}")
    columns = ("started (UTC)", "run", "commit", key.metric, "sd between", "verdict", "left out")
    rows = [
        (
            view.moment(point.started).removesuffix(" UTC"),
            point.run,
            view.commit(point.commit),
            view.amount(point.center, key.unit, point.between or None),
            view.share(point.between) if point.between else "",
            point.word,
            point.why_not,
        )
        for point in shown
    ]
    say_table("", columns, rows)
    if series.change_points is None:
        say("change points are not looked for: ruptures is not installed")
    for when, what, _ in _events(series, shown):
        say(f"{view.moment(when)}: {what}")


def _events(series: Series, shown: Sequence[Point]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Say when a level shifted and between which commits, and what was accepted, newest first."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for each in series.change_points or ():
        told = f"level shifted by {shift(each, series.key.unit)}; {commits(each)}"
        found.append((each.started, told, each.between))
    # The acceptances since the first point, and the one that held then.
    earlier = [move for move in series.moves if move.accepted < shown[0].started]
    for move in (*earlier[-1:], *series.moves[len(earlier) :]):
        level = view.amount(move.center, series.key.unit)
        told = f"baseline accepted at {level} by {move.by}: {move.reason}"
        found.append((move.accepted, told, ()))
    return sorted(found, reverse=True)


def shift(moved: ChangePoint, unit: str) -> str:
    """Return by how much a level shifted, with the p value."""
    was, now, by = view.beside(moved.before, moved.after, unit)
    levels = f"{was} to {now}"
    other = "; measured on another card from here on" if moved.is_other_unit else ""
    return f"{by if moved.before else levels} ({levels}, p {moved.p_value:.1g}){other}"


def commits(moved: ChangePoint) -> str:
    """Return the commits between which a level shifted."""
    before, after = view.commit(moved.commit_before), view.commit(moved.commit)
    if not after:
        return "no commit known"
    return f"{before}..{after}" if before != after else f"{after}, as before"


def write_trends(sku: str, found: Sequence[Series], folder: Path, remote: str = "") -> Path:
    """Write a SKU's page into a folder; raises StoreError where that cannot be written."""
    runs = sorted({(p.started, p.run, p.commit) for each in found for p in each.points})
    places = {run: place for place, (_, run, _) in enumerate(runs)}
    timed = {_moved(one) for one in found if one.key.metric == TIME.name}
    found = [one for one in found if one.key.metric != CYCLES.name or _moved(one) not in timed]
    ordered = sorted(found, key=lambda one: one.key.variant, reverse=True)
    ordered.sort(key=lambda one: [c.started for c in one.change_points or ()][-1:], reverse=True)
    times = [one for one in ordered if one.key.metric == TIME.name]
    charts = {
        "runs": [[run, started, view.commit(commit)] for started, run, commit in runs],
        "series": [_chart(f"{one.key.variant} {one.key.metric}", one, places) for one in ordered],
    }
    scripts = ("vendor/uplot/uPlot.iife.min.js", "charts.js", "trends.js")
    template = files.environment().get_template("trends.html.j2")
    page = template.render(
        sku=sku,
        remote=remote,
        runs=runs,
        shift=shift,
        commits=commits,
        lines=[(one, _spark(one, places)) for one in ordered],
        answers=[*answers(times, {one.key.variant for one in found})],
        pages={
            run
            for _, run, _ in runs
            # A shared history may hold any text: what is no id of ours is no folder.
            if FILE_NAME.match(run) and (folder / run / files.PAGE).is_file()
        },
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT,
        charts=charts,
        styles=[files.inline("vendor/uplot/uPlot.min.css"), files.inline("trends.css")],
        scripts=[files.inline(name) for name in scripts],
    )
    path = folder / files.trends_of(sku)
    with refusing("cannot write the trends", path, remedy="make the folder writable"):
        return replace_file(path, page.encode("utf-8", "replace"))


def _moved(one: Series) -> tuple[Any, ...]:
    """Return whose level shifted in which runs: cycles that shift as the time does say no more."""
    key = one.key
    return key.variant, key.regime, key.case_version, *(c.run for c in one.change_points or ())


def past_of(variant_view: VariantView) -> Markup:
    """Return what the page shows of a variant's past: its points, its shifts, what was accepted."""
    series: Series = variant_view.history
    if len(series.valid) <= 1:
        return Markup()
    shown = [point for point in series.points if point.center is not None]
    chart = _chart(series.key.metric, series, {each.run: at for at, each in enumerate(shown)}) | {
        "labels": [(e.run, view.moment(e.started), view.commit(e.commit)) for e in shown],
        "levels": [
            (sum(each.started < move.accepted for each in shown), move.center)
            for move in series.moves
        ],
    }
    page = files.environment().get_template("past.html.j2")
    events, remote = _events(series, shown), variant_view.run.remote
    text = page.render(series=series, shown=shown, events=events, chart=chart, remote=remote)
    return Markup(text)  # noqa: S704 - the template escapes


def _chart(name: str, series: Series, places: Mapping[str, int]) -> dict[str, Any]:
    """Return what the script draws of a series: the points of the runs that have a place."""
    shown = [point for point in series.points if point.run in places]
    return {
        "name": name,
        "unit": series.key.unit,
        "runs": [places[point.run] for point in shown],
        "centers": [point.center and float(f"{point.center:.6g}") for point in shown],
        "not": {at: point.why_not for at, point in enumerate(shown) if point.why_not},
        "changes": [change.run for change in series.change_points or ()],
    }


def _scale(centers: Sequence[float]) -> tuple[float, float]:
    """Return where a small chart begins and what it spans: noise of less looks flat."""
    low, high = min(centers, default=0.0), max(centers, default=0.0)
    span = max(high - low, SPARK_LEAST * abs(high)) or 1.0
    return (low + high - span) / 2, span


def _spark(one: Series, places: dict[str, int]) -> tuple[str, str]:
    """Return a small chart's line, and the upright rules of its shifts, as SVG has them."""
    centers = [point.center or 0.0 for point in one.valid]
    low, span = _scale(centers)
    # A page has thousands of these: whole pixels, and no call per point.
    step, height = SPARK_WIDTH / max(1, len(places) - 1), SPARK_HEIGHT - 2
    scale = height / span
    line = " ".join(
        f"{places[point.run] * step:.0f},{1 + height - (y - low) * scale:.0f}"
        for point, y in zip(one.valid, centers, strict=True)
    )
    at = ((places[each.run] - 0.5) * step for each in one.change_points or ())
    return line, "".join(f"M{x:.0f} 0v{SPARK_HEIGHT}" for x in at)
