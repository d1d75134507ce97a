"""What is to be run and how it is judged, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.baselines import Exceptions, Root
from perfsuite.judge import Policy
from perfsuite.model import ClaimInstance, Pack, Settings, Shard, Variant
from perfsuite.revision import RevisionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run and how it is judged; folders are the project's.

    If it ``is_brief``, what is unclear is measured again only if it seems to have moved, and
    nothing is traced but what has.
    """

    variants: tuple[Variant, ...]
    claims: tuple[ClaimInstance, ...]
    packs: tuple[Pack, ...]
    device: str = "auto"
    settings: Settings = field(default_factory=Settings)
    policy: Policy = field(default_factory=Policy)
    root: Path
    folder: Path
    baseline_roots: tuple[Root, ...]
    command: str = ""
    resume: bool = False
    resume_if_any: bool = False
    against: RevisionOptions | None = None
    exceptions: Exceptions = field(default_factory=Exceptions)
    time_s: float = float("inf")
    shard: Shard | None = None
    counters: bool = False
    is_brief: bool = False
