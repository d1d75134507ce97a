"""Packs: finding them without importing them, and loading one where that is safe."""

from perfsuite.packs.accelerators import chosen_accelerator, misfit
from perfsuite.packs.listeners import Listeners
from perfsuite.packs.loader import LoadedPack, load_pack
from perfsuite.packs.sources import GROUP, PackSource, discover, packs_at
from perfsuite.packs.validity import ARCH, RESERVED, Fault, Place

__all__ = [
    "ARCH",
    "GROUP",
    "RESERVED",
    "Fault",
    "Listeners",
    "LoadedPack",
    "PackSource",
    "Place",
    "chosen_accelerator",
    "discover",
    "load_pack",
    "misfit",
    "packs_at",
]
