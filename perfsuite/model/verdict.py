"""What judging yields: baselines, changes and verdicts, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from perfsuite.model.arms import Revision
from perfsuite.model.case import Variant
from perfsuite.model.metric import check_names
from perfsuite.model.pack import ClaimInstance
from perfsuite.model.part import LeftOut, Part, Shard
from perfsuite.model.result import DeviceFacts, Result, Sampling, Settings, Sku
from perfsuite.model.trace import Code, Trace, TracedKernel


class Word(StrEnum):
    """The verdict on a variant that ended ok; unclear is never forced into one of the others."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    UNCLEAR = "unclear"
    NEW = "new"
    INCOMPARABLE = "incomparable"
    OVER_BUDGET = "over-budget"


class ClaimWord(StrEnum):
    """What became of a claim."""

    HELD = "held"
    BROKEN = "broken"
    UNCLEAR = "unclear"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMetric:
    """The accepted estimate of one metric of one variant on one SKU.

    ``center`` is in ``unit``; ``within`` and ``between`` are relative standard deviations inside a
    process and from process to process. ``values`` holds each process's estimate by card, in the
    same order for all metrics of an entry, so that time and cycles of one process stay together.
    """

    center: float
    unit: str
    better: str = "lower"
    within: float = 0.0
    between: float = 0.0
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """One variant's accepted metrics; ``run`` is the run they come from.

    ``sampling`` is how its samples were made, if that is known: a later run samples alike.
    ``work_class`` is what limits it (compute, memory...): entries of one class share their noise.
    ``load`` is the share of the device that others took meanwhile.
    ``kernels`` are those of a launch, ``codes`` the code of our own among them, if it was traced.
    """

    variant: str
    case_version: int
    run: str
    metrics: Mapping[str, BaselineMetric]
    regime: str = "paced"
    state: Mapping[str, str] = field(default_factory=dict)
    artefact: str = ""
    sampling: Sampling | None = None
    work_class: str = ""
    load: float = 0.0
    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()

    def __post_init__(self) -> None:
        check_names(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How far a metric moved; ``theta``, ``low`` and ``high`` are relative, positive is worse.

    ``theta`` is the change of the code with the clock's own movement taken out;
    ``time_change`` and ``clock_change`` are the raw log changes of time and SM clock.
    ``detectable`` is the smallest change that would have been found nine times in ten.
    """

    metric: str
    unit: str
    baseline: float
    current: float
    theta: float
    low: float
    high: float
    threshold: float
    gate: float
    detectable: float
    p_value: float = 1.0
    time_change: float = 0.0
    clock_change: float = 0.0
    beta: float = 0.0
    degrees: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Excepted:
    """Why a verdict fails no run: ``kind`` is waiver or quarantine, ``until`` an ISO date.

    A waiver has its ``issue``, and ``up_to`` which relative change it holds.
    """

    kind: str
    until: str
    reason: str
    issue: str = ""
    up_to: float | None = None

    @property
    def short(self) -> str:
        """What fits beside a number."""
        word = {"waiver": "waived", "quarantine": "quarantined"}.get(self.kind, self.kind)
        return f"{word} until {self.until}"

    def __str__(self) -> str:
        limit = "" if self.up_to is None else f" up to {self.up_to:+.1%}"
        issue = f" ({self.issue})" if self.issue else ""
        return f"{self.short}{limit}: {self.reason}{issue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The word on one variant with its reason in words; ``fails`` says whether the run fails.

    ``source`` is what it was compared with ("baseline nvidia-h200", "last run 2026..."),
    ``confirmation`` how a change was confirmed ("fresh processes", "fresh processes on another
    GPU", "A against B", ""). ``card`` is the unit that alone was measured, where the baseline has
    never seen it and that leaves the verdict unclear. ``excepted`` is the waiver or quarantine by
    which it fails nothing.
    """

    variant: str
    word: Word
    reason: str
    changes: tuple[Change, ...] = ()
    source: str = ""
    confirmation: str = ""
    fails: bool = False
    card: str = ""
    excepted: Excepted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShift:
    """The verdict on a whole run whose machine changed: variants and a canary moved alike.

    ``word`` says which way, ``moved`` of ``comparable`` variants did on the units named, and
    ``variants`` are those whose own verdict this one replaces.
    """

    word: Word
    reason: str
    moved: int
    comparable: int
    units: tuple[str, ...]
    canaries: tuple[str, ...]
    variants: tuple[str, ...]
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVerdict:
    """What became of a claim: the time ratio found, with its interval, and the ratio asked for."""

    claim: str
    word: ClaimWord
    reason: str
    required: float
    source: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One ``pytest --perf`` session: all that a report, a comparison or an acceptance reads.

    ``results`` are of the code under test; ``aside`` are those of the revision that it is compared
    ``against``, and of quads for claims: no other run is ever compared with them.
    ``canaries`` watch the machine: they are measured but no part of what was asked for, unless
    ``variants`` has them too. ``phases_s`` is the controller's own wall time.
    ``code`` is a digest of the code that ran, which a resumed run must share.
    ``environments`` are those of the runs that it is compared with, by their ids.
    ``left_out`` had no room in its time limit; ``shard`` is the share of a whole that it measured,
    ``parts`` are the shards that it was put together from.
    """

    id: str
    started: str
    command: str
    sku: Sku
    facts: DeviceFacts
    settings: Settings
    variants: tuple[Variant, ...] = ()
    instances: tuple[ClaimInstance, ...] = ()
    results: tuple[Result, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    claims: tuple[ClaimVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    finished: str = ""
    wall_s: float = 0.0
    commit: str = ""
    code: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    against: Revision | None = None
    aside: tuple[Result, ...] = ()
    canaries: tuple[Variant, ...] = ()
    shift: MachineShift | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    traces: tuple[Trace, ...] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    shard: Shard | None = None
    parts: tuple[Part, ...] = ()

    @property
    def asked(self) -> tuple[Result, ...]:
        """The results of what the run was asked for, in the order they were measured."""
        return tuple(result for result in self.results if not result.stage.is_canary)

    @property
    def gaps(self) -> tuple[str, ...]:
        """The shards that a merged run lacks or has in part only, in words."""
        if not self.parts:
            return ()
        whole = self.parts[0].shard
        there = {part.shard.index: part for part in self.parts}
        cut = [str(part.shard) for part in self.parts if not part.is_whole]
        lacking = whole.total - len(self.variants)
        # A shard may have nothing to measure, and leave no run.
        missing = [n for n in range(1, whole.count + 1) if lacking and n not in there]
        return (
            *(f"shard {n}/{whole.count} is missing" for n in missing),
            *(f"shard {name} was interrupted" for name in cut),
            *([f"{lacking} of {whole.total} variants are not in this run"] if lacking else []),
        )
