"""What a run is a part of, what it was put together from, and what it had no room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsuite.model.result import DeviceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A variant that a run was asked for and had no time for; ``cost_s`` is what it would take."""

    variant: str
    reason: str
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The share of a run that one machine measures: ``index`` of ``count``, from 1.

    ``total`` variants are divided, ``whole`` is a digest of their ids and the tier they are of.
    """

    index: int
    count: int
    total: int = 0
    whole: str = ""
    tier: str = ""

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A shard's run in a merged one: where it was measured, and how long that took."""

    run: str
    shard: Shard
    facts: DeviceFacts
    units: Mapping[str, str] = field(default_factory=dict)
    wall_s: float = 0.0
    is_whole: bool = True
