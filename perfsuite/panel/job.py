"""What one worker is told to measure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from perfsuite import wire
from perfsuite.model import Arm, Stage, Variant
from perfsuite.panel.site import Site


@dataclass(frozen=True, slots=True)
class Turn:
    """One process of a variant, by number, and its arm."""

    variant: Variant
    stage: Stage
    process: int
    arm: Arm = Arm.B


def job_of(turn: Turn, slot: int, site: Site, rival: wire.Rival | None = None) -> wire.Job:
    """Return the job of a process in a slot."""
    variant, code = turn.variant, site.code(turn.arm)
    return wire.Job(
        pack=variant.pack,
        origin=code.origins[variant.pack],
        case=variant.case.name,
        axes=variant.axes,
        device=site.device,
        accelerator=site.accelerator,
        settings=site.settings,
        seed=_seed(f"{site.settings.seed}/{turn.stage}/{variant.id}/{turn.process}"),
        slot=slot,
        kernels=code.kernels,
        tree=code.tree,
        rival=rival,
    )


def _seed(text: str) -> int:
    # From names only: a variant measured alone gets the seeds it has in the whole suite.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
