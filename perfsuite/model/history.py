"""What many runs say of one variant: its series, where the level shifted, what was accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesKey:
    """What makes points comparable: one metric of one version of a variant, on one SKU."""

    sku: str
    variant: str
    metric: str
    regime: str
    case_version: int = 1
    unit: str = ""
    better: str = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run's estimate of a metric; relative numbers as in ``Change`` and ``BaselineMetric``.

    ``part`` tells the run's own measuring ("") from that of a canary, another arm or a claim.
    ``why_not`` says why it enters no average and no change point; "" if it does.
    ``center`` is None where nothing was measured, ``values`` are the processes' by card.
    """

    run: str
    started: str
    commit: str = ""
    center: float | None = None
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    between: float = 0.0
    word: str = ""
    theta: float | None = None
    low: float | None = None
    high: float | None = None
    part: str = ""
    why_not: str = ""

    @property
    def is_valid(self) -> bool:
        """Say whether it counts."""
        return not self.why_not and self.center is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """Where the level of a series shifted: in which run first, after which commit, by how much.

    ``before`` and ``after`` are the levels in the metric's unit; ``is_other_unit`` if no card
    measured on both sides.
    """

    run: str
    started: str
    commit_before: str
    commit: str
    before: float
    after: float
    p_value: float
    is_other_unit: bool = False

    @property
    def change(self) -> float:
        """The relative change of the metric's own value; infinite from nothing."""
        return self.after / self.before - 1 if self.before else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMove:
    """An acceptance: from when on, of which run, a series is compared with ``center``."""

    key: SeriesKey
    run: str
    accepted: str
    by: str
    reason: str
    center: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The points of one series in order of time; ``change_points`` is None if nobody looked."""

    key: SeriesKey
    points: tuple[Point, ...]
    change_points: tuple[ChangePoint, ...] | None = None
    moves: tuple[BaselineMove, ...] = ()

    @property
    def valid(self) -> tuple[Point, ...]:
        """The points that count."""
        return tuple(point for point in self.points if point.is_valid)


@dataclass(frozen=True, slots=True)
class RunLabel:
    """Which run a column of trends is."""

    id: str
    started: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One series in columns: of each point the place of its run among the trends' runs.

    ``why_not`` has the reason of each point that does not count, by its place in this series.
    """

    key: SeriesKey
    runs: tuple[int, ...]
    centers: tuple[float | None, ...]
    why_not: Mapping[int, str] = field(default_factory=dict)
    change_points: tuple[ChangePoint, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """All series of one SKU over the last runs that have any."""

    sku: str
    runs: tuple[RunLabel, ...]
    rows: tuple[Trend, ...]
