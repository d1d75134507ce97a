"""What a person asks of a proposal, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfsuite.baselines.nights import Night
from perfsuite.codec import StoredEntry
from perfsuite.model import BaselineEntry, Change

# A level is known from so many nights.
NIGHTS = 5
PROPOSED = ("new", "faster", "slower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What nights say of one variant, and what becomes of its entry.

    ``word`` is new, faster or slower where the entry moves; same, waiting (for more nights or for
    a person) or undecided where it stays, and ``why`` says it. ``entry`` is what would be stored.
    """

    sku: str
    variant: str
    word: str
    why: str
    old: StoredEntry | None
    entry: BaselineEntry
    nights: tuple[Night, ...]
    changes: tuple[Change, ...] = ()

    @property
    def is_proposed(self) -> bool:
        """Say whether the entry is written."""
        return self.word in PROPOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``earlier`` has the runs that say nothing
    of entries, for they began before the run those come from, by that run. ``environments``
    and ``commits`` are those of the runs that old entries come from.
    """

    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    earlier: Mapping[str, tuple[str, ...]]
    written: tuple[Path, ...]
    environments: Mapping[str, Mapping[str, str]]
    commits: Mapping[str, str]
