"""What one worker is told to measure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from perfsuite import wire
from perfsuite.model import Stage, Variant
from perfsuite.panel.site import Site


@dataclass(frozen=True, slots=True)
class Turn:
    """One process of a variant, by number."""

    variant: Variant
    stage: Stage
    process: int


def job_of(turn: Turn, slot: int, site: Site) -> wire.Job:
    """Return the job of a process in a slot."""
    variant = turn.variant
    return wire.Job(
        pack=variant.pack,
        origin=site.origins[variant.pack],
        case=variant.case.name,
        axes=variant.axes,
        device=site.device,
        settings=site.settings,
        seed=_seed(f"{site.settings.seed}/{turn.stage}/{variant.id}/{turn.process}"),
        slot=slot,
        kernels=site.kernels,
    )


def _seed(text: str) -> int:
    # From names only: a variant measured alone gets the seeds it has in the whole suite.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
