"""Makes one evidence of what the ranks of a gang measured together: the slowest rank counts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from perfsuite.errors import CaseError
from perfsuite.model import Block, Evidence, Metric

Worst = Callable[[Iterable[float]], float]
NUMBER = re.compile(r"\d[\d.]*")


def merged(ranks: Sequence[Evidence], metrics: Sequence[Metric]) -> Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in metrics}
    errors = [each.error for each in ranks if each.error is not None]
    blocks = zip(*(each.blocks for each in ranks), strict=True)
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max(errors, default=None),
        blocks=tuple(_block(parts, worst) for parts in blocks),
        exact=_worst([each.exact for each in ranks], worst),
        phases_s=_worst([each.phases_s for each in ranks], {}),
        notes=tuple(_notes([each.notes for each in ranks])),
    )


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]


def _block(parts: Sequence[Block], worst: Mapping[str, Worst]) -> Block:
    # The samples of a block are taken together, so that those at one place belong together.
    slowest = [
        max(range(len(parts)), key=times.__getitem__)
        for times in zip(*(part.time_us for part in parts), strict=False)
    ]
    has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
    names = sorted({name for part in parts for name in part.metrics})
    columns = {
        name: [part.metrics[name] for part in parts if name in part.metrics] for name in names
    }
    return replace(
        parts[0],
        time_us=tuple(parts[rank].time_us[place] for place, rank in enumerate(slowest)),
        cycles=tuple(parts[rank].cycles[place] for place, rank in enumerate(slowest))
        if has_cycles
        else (),
        voided=max(part.voided for part in parts),
        metrics={
            name: tuple(map(worst.get(name, max), zip(*columns[name], strict=False)))
            for name in names
        },
    )


def _worst(found: Sequence[Mapping[str, float]], worst: Mapping[str, Worst]) -> dict[str, float]:
    names = dict.fromkeys(name for each in found for name in each)
    return {
        name: worst.get(name, max)(each[name] for each in found if name in each) for name in names
    }


def _notes(found: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield what all ranks note once, with the first one's figures, and the rest by rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        everywhere = len(ranks) == len(found)
        yield note if everywhere else f"rank {', '.join(map(str, ranks))}: {note}"
