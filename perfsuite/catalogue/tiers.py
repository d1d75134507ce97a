"""Says what each tier of a case holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from perfsuite.model import Axes, Case, Scalar, Tier


def is_full_only(case: Case, axes: Axes) -> bool:
    """Say whether a binding is left to the full tier."""
    return any(
        all(axes[axis] in values for axis, values in each.items()) for each in case.full_only
    )


def bindings(case: Case, tier: Tier) -> Iterator[tuple[dict[str, Scalar], Tier]]:
    """Yield the bindings of the axes tier by tier, up to ``tier``: each contains those before."""
    replaced: Mapping[Tier, Mapping[str, tuple[Scalar, ...]]] = {
        Tier.SMOKE: case.smoke,
        Tier.NIGHTLY: {},
        Tier.FULL: case.full,
    }
    done: list[Mapping[str, tuple[Scalar, ...]]] = []
    for each, some in replaced.items():
        axes = {**case.axes, **some}
        for values in itertools.product(*axes.values()) if axes not in done else ():
            yield dict(zip(axes, values, strict=True)), each
        if each is tier:
            return
        done.append(axes)
