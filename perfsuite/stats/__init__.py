"""Turns numbers into estimates: robust centres, variances with a prior, intervals, p-values."""

from perfsuite.stats.difference import Difference
from perfsuite.stats.levels import Shift, shifts
from perfsuite.stats.samples import (
    Components,
    accepted,
    components,
    estimate,
    hodges_lehmann,
    is_greater,
    main_mode,
    pooled,
    process_value,
    rank_interval,
    spread,
)
from perfsuite.stats.variances import (
    MeanSquare,
    Mixture,
    Scatter,
    Variance,
    learned,
    moderated,
    quantile,
    scattered,
)

__all__ = [
    "Components",
    "Difference",
    "MeanSquare",
    "Mixture",
    "Scatter",
    "Shift",
    "Variance",
    "accepted",
    "components",
    "estimate",
    "hodges_lehmann",
    "is_greater",
    "learned",
    "main_mode",
    "moderated",
    "pooled",
    "process_value",
    "quantile",
    "rank_interval",
    "scattered",
    "shifts",
    "spread",
]
