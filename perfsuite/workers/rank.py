"""Ranks of a variant: what a gang measured, as one evidence of one unit."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import CaseError

NUMBER = re.compile(r"\d[\d.]*")


def merged(ranks: Sequence[model.Evidence], metrics: Sequence[model.Metric]) -> model.Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    if len(ranks) == 1:
        return first
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in (*model.METRICS, *metrics)}
    exact = _by_name(each.exact for each in ranks)
    phases_s = _by_name(each.phases_s for each in ranks)
    blocks = []
    for parts in zip(*(each.blocks for each in ranks), strict=True):
        # The samples of a block are taken together, so that those at one place belong together.
        has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
        samples = [zip(part.time_us, part.cycles or part.time_us, strict=False) for part in parts]
        slowest = [max(each) for each in zip(*samples, strict=False)]
        metrics_of = _by_name(part.metrics for part in parts)
        blocks.append(
            replace(
                parts[0],
                time_us=tuple(time_us for time_us, _ in slowest),
                cycles=tuple(cycles for _, cycles in slowest) if has_cycles else (),
                voided=max(part.voided for part in parts),
                metrics={
                    name: tuple(map(worst.get(name, max), zip(*columns, strict=False)))
                    for name, columns in metrics_of.items()
                },
            )
        )
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max((each.error for each in ranks if each.error is not None), default=None),
        blocks=tuple(blocks),
        exact={name: worst.get(name, max)(values) for name, values in exact.items()},
        phases_s={name: max(values) for name, values in phases_s.items()},
        notes=tuple(_notes_of([each.notes for each in ranks])),
    )


def _notes_of(found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the notes of ranks: those that differ in figures alone once, others with their rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        yield note if len(ranks) == len(found) else f"rank {', '.join(map(str, ranks))}: {note}"


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = defaultdict(list)
    for each in found:
        for name, value in each.items():
            values[name].append(value)
    return values


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]
