"""The drawings of a variant's section: its processes now and before, its samples in time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.model import Block
from perfsuite.report import charts, view
from perfsuite.report.subject import TIME, Subject, centre

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
