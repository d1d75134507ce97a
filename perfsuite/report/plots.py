"""Plots of the page: processes, roofline, history."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup, escape

from perfsuite.judge import peaks as roofline
from perfsuite.model import BaselineMove, Block, ChangePoint, Point, Series
from perfsuite.report import charts, view
from perfsuite.report.charts import Axis
from perfsuite.report.data import TIME, Subject, centre

# The drawings of a variant's section: its processes now and before, its samples in time.


# Tones of slots in turn; with more slots than tones, the shading of turns still tells them apart.
SLOT_TONES = 3


@dataclass(frozen=True, slots=True)
class Strip:
    """One process, or the accepted processes of one unit, as a line with its numbers in text."""

    label: str
    plot: Markup
    centre: str
    count: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """The strips of a variant above one scale."""

    strips: tuple[Strip, ...]
    scale: Markup


@dataclass(frozen=True, slots=True)
class Track:
    """One quantity over the samples in time order."""

    label: str
    low: str
    high: str
    plot: Markup


def distribution(subject: Subject) -> Distribution | None:
    """Return a strip per process with all its samples, now and before."""
    processes = list(_processes(subject))
    if not processes:
        return None
    is_before_known = any(tone == "before" for _, tone, _, _ in processes)
    accepted = [] if is_before_known else list(_accepted(subject))
    shown = [value for *_, blocks, _ in processes for block in blocks for value in block]
    kept = [middle for *_, middle in processes]
    axis = charts.axis_of(shown, keep=kept + [value for _, values in accepted for value in values])
    digits, like = subject.digits(), subject.now() or kept[0]
    strips = [
        Strip(
            label,
            charts.strip(blocks, axis, centre=middle, tone=tone),
            view.time(middle, digits, like=like),
            view.count(sum(map(len, blocks)), "sample"),
        )
        for label, tone, blocks, middle in processes
    ]
    strips += [_estimates(*one, axis, subject) for one in accepted]
    return Distribution(tuple(strips), _scale(axis, like))


def tracks(subject: Subject) -> tuple[Track, ...]:
    """Return time per launch and what the device did meanwhile, in the order measured."""
    turns = sorted(
        ((block, _slot(process.slot)) for process in subject.evidence for block in process.blocks),
        key=lambda turn: turn[0].start_s,
    )
    like, digits = subject.now(), subject.digits()
    times = [(tone, list(block.time_us)) for block, tone in turns]
    clocks = [(tone, _megahertz(block)) for block, tone in turns]
    drawn = (
        _track("Time", times, lambda value: view.time(value, digits, like=like)),
        _track("SM clock", clocks, view.clock),
        _levels("Power", turns, "power_w", "W"),
        _levels("Temperature", turns, "temperature_c", "°C"),
    )
    return tuple(track for track in drawn if track)


def _processes(subject: Subject) -> Iterator[tuple[str, str, list[list[float]], float]]:
    """Yield label, tone, samples by block and middle of each process."""
    stages = {"now": subject.result, "screen": subject.screen, "before": subject.before}
    for tone, result in stages.items():
        for index, process in enumerate(result.evidence if result else (), start=1):
            middle = centre(process, TIME)
            if middle is not None:
                place = f" · {view.unit(process.unit)}" if process.unit else ""
                yield f"{tone} {index}{place}", tone, process.samples(TIME), middle


def _accepted(subject: Subject) -> Iterator[tuple[str, tuple[float, ...]]]:
    metric = subject.entry.metrics.get(TIME) if subject.entry else None
    for unit, values in metric.values.items() if metric else ():
        if values:
            yield f"baseline · {view.unit(unit)}", values


def _estimates(label: str, values: tuple[float, ...], axis: charts.Axis, subject: Subject) -> Strip:
    tone = "now" if label == "now" else "before"
    middle = view.time(statistics.median(values), subject.digits(), like=subject.now())
    processes = view.count(len(values), "process", "processes")
    return Strip(label, charts.points(values, axis, tone=tone), middle, processes)


def _scale(axis: charts.Axis, like: float) -> Markup:
    factor, symbol = view.time_unit(like)
    ticks = axis.ticks()
    step = (ticks[1] - ticks[0]) / factor if len(ticks) > 1 else 1.0
    labels = [(tick, view.tick(tick / factor, step, symbol)) for tick in ticks]
    return charts.scale(axis, labels)


def _slot(slot: int) -> str:
    return f"slot{slot % SLOT_TONES}"


def _megahertz(block: Block) -> list[float]:
    # Cycles per microsecond are megahertz, of exactly the window that was timed.
    return [c / t for c, t in zip(block.cycles, block.time_us, strict=False) if t > 0]


def _track(
    label: str, turns: Sequence[tuple[str, list[float]]], text: Callable[[float], str]
) -> Track | None:
    values = [value for _, turn in turns for value in turn]
    if not values:
        return None
    axis = charts.axis_of(values)
    return Track(label, text(min(values)), text(max(values)), charts.track(turns, axis))


def _levels(label: str, turns: Sequence[tuple[Block, str]], name: str, unit: str) -> Track | None:
    found = [
        (tone, len(block.time_us), getattr(block.health, name) if block.health else None)
        for block, tone in turns
    ]
    values = [value for _, _, value in found if value is not None]
    if not values:
        return None
    low, high = (
        f"{view.number(value, 0)}{view.SPACE}{unit}" for value in (min(values), max(values))
    )
    return Track(label, low, high, charts.levels(found, charts.axis_of(values)))


# Draws a roofline: rates over operations per byte, both by powers of ten, as inline SVG.
#
# Everything is placed in percent of the drawing, so that text, dots and lines keep their size.


# How high the style sheet draws them, in pixels: an arrow is never shorter than it is wide.
HEIGHT, SMALL_HEIGHT = 416, 176
SHORTEST_ARROW = 24
LABEL = 14
HALF = 50
# An axis of so many powers of ten has room for values between them.
DENSE_UP_TO = 3
# Beyond so many points a page does without their titles.
MOST_TITLES = 1000


@dataclass(frozen=True, slots=True)
class RoofplotPoint:
    """One case: operations per byte, its rate per second now and, if it moved, before."""

    intensity: float
    rate: float
    before: float | None
    tone: str
    title: str
    is_loud: bool


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate per second that nothing exceeds; dashed unless it was measured."""

    name: str
    rate: float
    is_measured: bool
    is_link: bool = True


def plane(
    points: Sequence[RoofplotPoint], ceilings: Sequence[Ceiling], *, is_small: bool = False
) -> Markup:
    """Draw points under the ceilings of their links and operations."""
    x = _decades([one.intensity for one in points], [_ridge(ceilings)])
    rates = [rate for one in points for rate in (one.rate, one.before) if rate]
    y = _decades(rates, [one.rate for one in ceilings if not one.is_link])
    height = SMALL_HEIGHT if is_small else HEIGHT
    body = [*_grid(x, y, is_small=is_small), *_roofs(ceilings, (x, y), is_small=is_small)]
    body += _dots(points, (x, y), height)
    return _svg("roof small" if is_small else "roof", "".join(body))


def lane(points: Sequence[RoofplotPoint], ceiling: Ceiling | None) -> Markup:
    """Draw the rates of what moves bytes only along one line, up to the ceiling of their link."""
    x = _decades(
        [rate for one in points for rate in (one.rate, one.before) if rate],
        [ceiling.rate] if ceiling else [],
    )
    body = [
        f'<line class="grid" x1="{at:.1f}%" x2="{at:.1f}%" y2="100%"/>'
        f'<text class="mid" x="{at:.1f}%" y="100%" dy="14">'
        f"{view.flow(value, 'B/s', digits=1)}</text>"
        for value, at in _ticks(x)
    ]
    if ceiling:
        at, kind = _percent(ceiling.rate, x), "" if ceiling.is_measured else " given"
        body.append(
            f'<line class="ceiling{kind}" x1="{at:.2f}%" x2="{at:.2f}%" y2="100%"/>'
            f'<text class="name end" x="{at:.2f}%" dx="-4" y="10">{escape(ceiling.name)}</text>'
        )
    # Three heights in turn keep equal rates apart.
    for index, one in enumerate(points):
        body.append(_dot(one, _percent(one.rate, x), 40 + 20 * (index % 3), titled=len(points)))
    return _svg("roof lane", "".join(body))


def _grid(x: Axis, y: Axis, *, is_small: bool) -> Iterator[str]:
    for value, at in _ticks(x):
        label = view.figures(value, 1)
        yield (
            f'<line class="grid" x1="{at:.1f}%" x2="{at:.1f}%" y2="100%"/>'
            f'<text class="mid" x="{at:.1f}%" y="100%" dy="14">{label}</text>'
        )
    for value, at in _ticks(y):
        yield (
            f'<line class="grid" x2="100%" y1="{100 - at:.1f}%" y2="{100 - at:.1f}%"/>'
            f'<text class="end" x="-6" y="{100 - at:.1f}%" dy="4">'
            f"{view.flow(value, '', digits=1)}</text>"
        )
    unit = "FLOP/byte" if is_small else "operations per byte (FLOP/byte)"
    yield f'<text class="mid" x="50%" y="100%" dy="30">{unit}</text>'
    yield '<text class="end" x="-6" y="0" dy="-4">FLOP/s</text>'


def _roofs(
    ceilings: Sequence[Ceiling], axes: tuple[Axis, Axis], *, is_small: bool
) -> Iterator[str]:
    x, y = axes
    operations = sorted((one for one in ceilings if not one.is_link), key=lambda one: -one.rate)
    links = [one for one in ceilings if one.is_link]
    highest = operations[0].rate if operations else 10.0**y.high
    for one in links:
        low = max(10.0**x.low, 10.0**y.low / one.rate)
        high = min(10.0**x.high, highest / one.rate)
        yield _line(one, (low, low * one.rate), (high, high * one.rate), axes)
        at = _percent(low, x), 100 - _percent(low * one.rate, y)
        place = f'x="{at[0]:.2f}%" y="{at[1]:.2f}%" dx="12" dy="4"'
        yield f'<text class="name" {place}>{escape(one.name)}</text>'
    fastest = max((one.rate for one in links), default=math.inf)
    lowest = -math.inf
    for one in operations:
        left = max(one.rate / fastest, 10.0**x.low)
        yield _line(one, (left, one.rate), (10.0**x.high, one.rate), axes)
        # Labels of ceilings that lie close together are pushed apart, downwards.
        height = SMALL_HEIGHT if is_small else HEIGHT
        lowest = max(lowest + LABEL, (1 - _percent(one.rate, y) / 100) * height - 4)
        # Beside the ridge there is room only where that lies on the left.
        ridge = _percent(left, x)
        at_start = is_small and ridge < HALF
        place = f'class="name" x="{ridge:.1f}%" dx="6"' if at_start else 'class="name end" x="100%"'
        yield f'<text {place} y="{lowest:.0f}">{escape(one.name)}</text>'


def _line(
    one: Ceiling, start: tuple[float, float], end: tuple[float, float], axes: tuple[Axis, Axis]
) -> str:
    (x1, y1), (x2, y2) = (
        (_percent(a, axes[0]), 100 - _percent(b, axes[1])) for a, b in (start, end)
    )
    kind = "" if one.is_measured else " given"
    return (
        f'<line class="ceiling{kind}" x1="{x1:.2f}%" y1="{y1:.2f}%" x2="{x2:.2f}%" y2="{y2:.2f}%"/>'
    )


def _dots(points: Sequence[RoofplotPoint], axes: tuple[Axis, Axis], height: int) -> Iterator[str]:
    # What needs a reader is drawn last, above the others.
    for one in sorted(points, key=lambda one: one.is_loud):
        at = _percent(one.intensity, axes[0]), 100 - _percent(one.rate, axes[1])
        if one.before:
            way = (_percent(one.rate, axes[1]) - _percent(one.before, axes[1])) / 100 * height
            yield _arrow(one, at, math.copysign(max(abs(way), SHORTEST_ARROW), way))
        yield _dot(one, *at, titled=len(points))


def _dot(one: RoofplotPoint, x: float, y: float, *, titled: int) -> str:
    title = f"<title>{escape(one.title)}</title>" if titled <= MOST_TITLES else ""
    kind = f"{escape(one.tone)} loud" if one.is_loud else escape(one.tone)
    place = f'cx="{x:.2f}%" cy="{y:.2f}%" r="{5 if one.is_loud else 4}"'
    return f'<circle class="{kind}" {place}>{title}</circle>'


def _arrow(one: RoofplotPoint, at: tuple[float, float], way: float) -> str:
    # It comes from where the case was and ends at the dot; upwards is faster.
    tip, head = math.copysign(7, way), math.copysign(12, way)
    path = f"M0 {way:.0f}V{tip:.0f}M-4 {head:.0f}L0 {tip:.0f}L4 {head:.0f}"
    return (
        f'<svg x="{at[0]:.2f}%" y="{at[1]:.2f}%">'
        f'<path class="arrow {escape(one.tone)}" d="{path}"/></svg>'
    )


def _decades(values: Sequence[float], more: Sequence[float]) -> Axis:
    """Return an axis over powers of ten that shows all values, with room at both ends."""
    logs = [math.log10(value) for value in (*values, *more) if value > 0 and math.isfinite(value)]
    return Axis(min(logs, default=0) - 0.35, max(logs, default=1) + 0.25)


def _ridge(ceilings: Sequence[Ceiling]) -> float:
    links = [one.rate for one in ceilings if one.is_link]
    operations = [one.rate for one in ceilings if not one.is_link]
    return max(operations) / max(links) if links and operations else 0.0


def _ticks(axis: Axis) -> Iterator[tuple[float, float]]:
    """Yield round values and where they are, in percent; only powers of ten on a long axis."""
    steps = (1, 2, 5) if axis.high - axis.low < DENSE_UP_TO else (1,)
    for power in range(math.floor(axis.low), math.ceil(axis.high)):
        for value in (step * 10.0**power for step in steps):
            if axis.low <= math.log10(value) <= axis.high:
                yield value, _percent(value, axis)


def _percent(value: float, axis: Axis) -> float:
    return axis.at(math.log10(value), 100)


def _svg(kind: str, body: str) -> Markup:
    # Safe: numbers and tones, and text that is escaped above.
    return Markup(f'<svg class="{kind}" aria-hidden="true">{body}</svg>')  # noqa: S704


# Where cases stand under the ceilings of their SKU: by operations, or by bytes alone.


@dataclass(frozen=True)
class Place:
    """Where one variant stands: rates in bytes/s or FLOP/s, ``intensity`` in FLOP/byte.

    ``link`` names its wire, ``dtype`` the rate of its operations; without operations there is
    neither a dtype nor an intensity. ``before`` is its rate in the baseline, if it has moved.
    """

    subject: Subject
    link: str
    dtype: str
    intensity: float
    rate: float
    before: float | None
    share: float | None
    peaks: roofline.Peaks

    @property
    def point(self) -> RoofplotPoint:
        """The place as it is drawn."""
        mark, title = self.subject.mark, f"{self.subject.variant.id}: {self.said}"
        is_loud = mark.needs_reader or self.before is not None
        return RoofplotPoint(self.intensity, self.rate, self.before, mark.tone, title, is_loud)

    @property
    def ceiling(self) -> roofline.Rate | None:
        """The ceiling that is nearest above it; None where it is not known."""
        if self.peaks.is_generic:
            return None
        link, operations = self.peaks.links.get(self.link), self.peaks.operations.get(self.dtype)
        if not self.dtype:
            return link
        is_by_link = link and operations and link.value * self.intensity < operations.value
        return link if is_by_link or operations is None else operations

    @property
    def said(self) -> str:
        """The rate, and the share of the ceiling where that is known."""
        rate = self.shown(self.rate)
        return f"{rate}, {view.share(self.share)} of the ceiling" if self.share else rate

    @property
    def text(self) -> str:
        """The place in words."""
        rate, ceiling = self.ceiling, ""
        if rate:
            is_link = rate is self.peaks.links.get(self.link)
            amount = view.flow(rate.value, "B/s" if is_link else "FLOP/s")
            kind = "measured" if rate.measured else "from a datasheet"
            ceiling = f" Limited by {self.link if is_link else self.dtype}: {amount}, {kind}."
        return f"{self.said}.{ceiling} {self.balance}".strip()

    @property
    def balance(self) -> str:
        """Operations per byte, where there are both."""
        has_both = self.dtype and math.isfinite(self.intensity)
        return f"{view.figures(self.intensity, 3)}{view.SPACE}FLOP/B" if has_both else ""

    def shown(self, rate: float | None) -> str:
        """Return a rate in its unit."""
        return view.flow(rate, "FLOP/s" if self.dtype else "B/s")

    @cached_property
    def drawing(self) -> Markup:
        """The place alone under its ceilings."""
        if self.dtype:
            return _plane([self], self.peaks, is_small=True)
        return _lane(self.link, [self], self.peaks)


@dataclass(frozen=True, slots=True)
class Lane:
    """What moves bytes only, over one link: its name, ceiling and drawing."""

    title: str
    drawing: Markup


@dataclass(frozen=True, slots=True)
class Roof:
    """All cases of a run under the ceilings of its SKU, drawn and as lines of a table."""

    places: tuple[Place, ...]
    plane: Markup
    lanes: tuple[Lane, ...]
    ceilings: tuple[tuple[str, str, str, str], ...]


def place(subject: Subject, peaks: roofline.Peaks) -> Place | None:
    """Return where a variant stands, or None where no work is stated or nothing was timed."""
    work, now = subject.variant.work, subject.now()
    if work is None or not now or not (work.flops or work.bytes):
        return None
    if roofline.is_held_by_starts(work, peaks):  # neither axis says why it takes its time
        return None
    amount = work.flops or work.bytes
    verdict, base = subject.verdict, subject.baseline()
    has_moved = verdict is not None and verdict.word.asks_why and subject.change is not None
    return Place(
        subject=subject,
        link=roofline.link_of(work, peaks),
        dtype=(work.rate_dtype or "fp32") if work.flops else "",
        intensity=work.flops / work.bytes if work.bytes else math.inf,
        rate=1e6 * amount / now,
        before=1e6 * amount / base if has_moved and base else None,
        share=roofline.efficiency(work, peaks, now),
        peaks=peaks,
    )


def roof(subjects: Iterable[Subject], peaks: roofline.Peaks) -> Roof | None:
    """Return every case of a run that states its work; None where none does."""
    places = [found for subject in subjects if (found := place(subject, peaks))]
    if not places:
        return None
    links = {one.link for one in places if not one.dtype}
    lanes = (
        Lane(link, _lane(link, [p for p in places if p.link == link and not p.dtype], peaks))
        for link in sorted(links)
    )
    on_plane = [p for p in places if p.dtype and math.isfinite(p.intensity)]
    plane = _plane(on_plane, peaks) if on_plane else Markup()
    return Roof(tuple(places), plane, tuple(lanes), tuple(_ceilings(places, peaks)))


def _plane(places: Sequence[Place], peaks: roofline.Peaks, *, is_small: bool = False) -> Markup:
    known = () if peaks.is_generic else tuple(_lines(places, peaks))
    return plane([one.point for one in places], known, is_small=is_small)


def _lines(places: Sequence[Place], peaks: roofline.Peaks) -> Iterable[Ceiling]:
    for name in sorted({one.link for one in places}):
        if rate := peaks.links.get(name):
            text = f"{name} {view.flow(rate.value, 'B/s')}"
            yield Ceiling(text, rate.value, rate.measured, is_link=True)
    same: dict[roofline.Rate, list[str]] = {}
    for name in sorted({one.dtype for one in places}):
        if rate := peaks.operations.get(name):
            same.setdefault(rate, []).append(name)
    for rate, names in same.items():
        text = f"{', '.join(names)} {view.flow(rate.value, 'FLOP/s')}"
        yield Ceiling(text, rate.value, rate.measured, is_link=False)


def _lane(link: str, places: Sequence[Place], peaks: roofline.Peaks) -> Markup:
    rate = None if peaks.is_generic else peaks.links.get(link)
    ceiling = Ceiling(view.flow(rate.value, "B/s"), rate.value, rate.measured) if rate else None
    return lane([one.point for one in places], ceiling)


def _ceilings(
    places: Sequence[Place], peaks: roofline.Peaks
) -> Iterable[tuple[str, str, str, str]]:
    if peaks.is_generic:
        return
    sides = (
        (peaks.links, {one.link for one in places}, "B/s"),
        (peaks.operations, {one.dtype for one in places}, "FLOP/s"),
    )
    for rates, names, unit in sides:
        for name in sorted(names & set(rates)):
            rate = rates[name]
            kind = "measured" if rate.measured else "datasheet"
            yield name, view.flow(rate.value, unit), kind, rate.source


# The part of a variant's section that tells of earlier runs: its points, shifts and baselines.


HISTORY_HEIGHT = 72
EDGE = 6
# A single point is no history.
FEWEST = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the history in words."""

    when: str
    what: str


@dataclass(frozen=True, slots=True)
class Past:
    """A variant's history as a chart, the ends of its scale, and its events in words."""

    plot: Markup
    high: str
    low: str
    label: str
    events: tuple[Line, ...]
    left_out: int


def past(series: Series | None) -> Past | None:
    """Return what earlier runs say of a variant, None where there are none."""
    if series is None or len(series.valid) < FEWEST:
        return None
    shown = [point for point in series.points if point.center is not None]
    moves = _in_sight(series.moves, shown)
    centers = [point.center or 0.0 for point in series.valid]
    axis = charts.axis_of(centers, keep=[move.center for move in moves])
    changes = series.change_points or ()
    key = series.key
    return Past(
        plot=_plot(shown, axis, changes, moves),
        high=view.amount(max(centers), key.unit),
        low=view.amount(min(centers), key.unit),
        label=f"{key.metric}, the last {view.count(len(shown), 'run')}",
        events=tuple(_events(series, changes, moves)),
        left_out=len(series.points) - len(series.valid),
    )


def change_words(change: ChangePoint, unit: str) -> str:
    """Return by how much a level shifted, with the p value."""
    # A tenth of the shift is the last digit that says something of it.
    tenth = abs(change.change) / 10
    noise = tenth if 0 < abs(change.change) < 1 else None
    levels = " to ".join(view.amount(each, unit, noise) for each in (change.before, change.after))
    by = view.percent(change.change, half_width=tenth) if change.before else levels
    other = "; measured on another card from here on" if change.is_other_unit else ""
    return f"{by} ({levels}, p {view.p_value(change.p_value)}){other}"


def commits(change: ChangePoint) -> str:
    """Return the commits between which the level shifted."""
    before, after = view.commit(change.commit_before), view.commit(change.commit)
    if not after:
        return "no commit known"
    return f"{before}..{after}" if before != after else f"{after}, as before"


def _events(
    series: Series, changes: Sequence[ChangePoint], moves: Sequence[BaselineMove]
) -> Iterator[Line]:
    """Yield what happened, the newest first."""
    unit = series.key.unit
    found = [
        (change.started, f"level shifted by {change_words(change, unit)}; {commits(change)}")
        for change in changes
    ]
    found += [
        (
            move.accepted,
            f"baseline accepted at {view.amount(move.center, unit)} by {move.by}: {move.reason}",
        )
        for move in moves
    ]
    return (Line(view.moment(when), what) for when, what in sorted(found, reverse=True))


def _in_sight(moves: Sequence[BaselineMove], points: Sequence[Point]) -> list[BaselineMove]:
    """Return the acceptances since the first point, and the one that held then."""
    before = [move for move in moves if move.accepted < points[0].started]
    return [*before[-1:], *(move for move in moves if move.accepted >= points[0].started)]


def _plot(
    points: Sequence[Point],
    axis: charts.Axis,
    changes: Sequence[ChangePoint],
    moves: Sequence[BaselineMove],
) -> Markup:
    """Draw points in order of time: the accepted level behind them, a rule where it shifted."""
    step = charts.WIDTH / len(points)
    place = {point.run: (index + 0.5) * step for index, point in enumerate(points)}
    counted = [point for point in points if point.is_valid]
    left_out = [point for point in points if not point.is_valid]
    rules = "".join(f"M{place[change.run] - step / 2:.0f} 0v{HISTORY_HEIGHT}" for change in changes)
    line = " ".join(f"{place[each.run]:.0f},{_y(each.center, axis)}" for each in counted)
    bands = _accepted_history(points, axis, moves)
    thin = 'stroke="currentColor" vector-effect="non-scaling-stroke"'
    parts = (
        f'<path {thin} stroke-opacity=".3" stroke-width="6" d="{bands}"/>',
        f'<path class="median" stroke-dasharray="3 3" d="{rules}"/>',
        f'<polyline {thin} stroke-opacity=".5" points="{line}"/>',
        _dots_history("now", counted, place, axis),
        _dots_history("unclear", left_out, place, axis),
    )
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="plot track" viewBox="0 0 {charts.WIDTH} {HISTORY_HEIGHT}" '
        f'preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _dots_history(
    tone: str, points: Sequence[Point], place: dict[str, float], axis: charts.Axis
) -> str:
    path = "".join(f"M{place[each.run]:.0f} {_y(each.center, axis)}h0" for each in points)
    return f'<path class="dots {tone}" d="{path}"/>'


def _accepted_history(
    points: Sequence[Point], axis: charts.Axis, moves: Sequence[BaselineMove]
) -> str:
    step = charts.WIDTH / len(points)
    starts = [sum(point.started < move.accepted for point in points) * step for move in moves]
    ends = [*starts[1:], float(charts.WIDTH)]
    return "".join(
        f"M{start:.0f} {_y(move.center, axis)}H{end:.0f}"
        for start, end, move in zip(starts, ends, moves, strict=False)
    )


def _y(center: float | None, axis: charts.Axis) -> str:
    return f"{EDGE + (1 - axis.at(center or 0.0, 1)) * (HISTORY_HEIGHT - 2 * EDGE):.0f}"
