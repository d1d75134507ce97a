"""What was accepted for the variants of a run, as moves in their history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfsuite.baselines.load import Baselines
from perfsuite.baselines.shipped import Root
from perfsuite.model import BaselineMove, Run, SeriesKey
from perfsuite.sku import sku_for


def moves_of(run: Run, roots: Sequence[Root]) -> Iterator[BaselineMove]:
    """Yield the acceptance behind each metric of the variants that the run has results of."""
    measured = {result.variant for result in run.results}
    skus = {
        variant.id: sku_for(variant, run.facts, own=run.sku)
        for variant in run.variants
        if variant.id in measured
    }
    stored = Baselines.load_each(roots, skus.values())
    for name, sku in skus.items():
        known = stored[sku.slug].stored.get(name)
        if known is None:
            continue
        for metric, estimate in known.entry.metrics.items():
            key = SeriesKey(
                sku=sku.slug,
                variant=name,
                metric=metric,
                regime=known.entry.regime,
                case_version=known.entry.case_version,
                unit=estimate.unit,
                better=estimate.better,
            )
            yield BaselineMove(
                key=key,
                run=known.entry.run,
                accepted=known.accepted.when,
                by=known.accepted.by,
                reason=known.accepted.reason,
                center=estimate.center,
            )
