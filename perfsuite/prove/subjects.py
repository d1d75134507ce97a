"""The planted variants by what they change: one base, and the same with more work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfsuite.model import Variant
from perfsuite.model.case import format_value
from perfsuite.prove.planted import STRUCTURAL

CHANGE = "change"
# The change that tools are compared at: the one nearest to this.
COMPARED = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The variants of a case that differ in ``change`` only; ``base`` has none."""

    name: str
    base: Variant
    planted: Mapping[float, Variant]

    @property
    def is_structural(self) -> bool:
        """Say whether a change is something added, not a share of the work."""
        return STRUCTURAL in self.base.case.tags

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The base, then the planted ones."""
        return (self.base, *self.planted.values())

    def compared(self) -> tuple[float, Variant]:
        """Return the change, and its variant, that tools are compared at."""
        change = min(self.planted, key=lambda each: abs(each - COMPARED))
        return change, self.planted[change]


def subjects_of(variants: Iterable[Variant]) -> tuple[Subject, ...]:
    """Group variants; those without a base or without a change are left out."""
    groups: dict[str, dict[float, Variant]] = {}
    for variant in variants:
        if CHANGE in variant.axes:
            others = [format_value(v) for k, v in variant.axes.items() if k != CHANGE]
            name = " ".join((variant.case.name, *others))
            groups.setdefault(name, {})[float(variant.axes[CHANGE])] = variant
    return tuple(
        Subject(
            name=name,
            base=arms[0.0],
            planted={change: arms[change] for change in sorted(arms) if change},
        )
        for name, arms in groups.items()
        if 0.0 in arms and len(arms) > 1
    )
