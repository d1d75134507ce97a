"""What measuring yields: samples by process, and the facts of the device they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from perfsuite.model.arms import Arm
from perfsuite.model.metric import check_names


class Status(StrEnum):
    """How the run of a variant ended; what it means for speed is the verdict's business."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    DISTURBED = "disturbed"
    SKIPPED = "skipped"
    ERROR = "error"


class Stage(StrEnum):
    """Which measuring of a variant a result belongs to; stages share no process."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    CANARY_START = "canary-start"
    CANARY_END = "canary-end"

    @property
    def is_canary(self) -> bool:
        """Say whether the machine is measured, not what the run was asked for."""
        return self in {Stage.CANARY_START, Stage.CANARY_END}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run measures; times in seconds unless the name says otherwise.

    A process takes a block of ``samples`` in each of its ``rounds``. Of a screen of what a
    device times itself, paced, ``screen_rounds`` are enough: what is left then is what processes
    and cards differ by.
    """

    processes: int = 3
    confirm_processes: int = 6
    rounds: int = 3
    screen_rounds: int = 2
    samples: int = 16
    sample_us: float = 500.0
    settle_s: float = 3.0
    start_limit_s: float = 60.0
    prepare_limit_s: float = 120.0
    block_limit_s: float = 60.0
    check_only: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("processes", "confirm_processes", "rounds", "screen_rounds", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"Settings.{name} must be at least 1, not {getattr(self, name)}")

    def rounds_of(self, stage: Stage, *, is_paced: bool) -> int:
        """Return how many blocks a process takes, paced by a device's own clock or not.

        Of 932 comparisons between two H200s three blocks left 168 unclear, two 168, one 170; the
        changes that would be found, of 1.8 % in the middle, differed by 0.02 % between three and
        two. Blocks by a host's clock scatter more.
        """
        if self.check_only:
            return 0
        is_short = is_paced and stage is Stage.SCREEN
        return min(self.rounds, self.screen_rounds) if is_short else self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a GPU around one block; None or empty where the device does not say."""

    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    reasons: tuple[str, ...] = ()
    foreign_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The samples one worker took in one turn, per launch, in time order.

    ``time_us`` are microseconds, ``cycles`` SM cycles (empty on a device with one clock).
    ``voided`` counts samples thrown away because the device was disturbed. ``metrics`` holds the
    samples of other metrics by name: a scenario's own, or the device's time of awaited launches.
    """

    time_us: tuple[float, ...]
    cycles: tuple[float, ...] = ()
    voided: int = 0
    start_s: float = 0.0
    health: Health | None = None
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names(self.metrics)


# More input sets than this are never made, whatever a file says.
MOST_SETS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How launches make a sample: how many of them, over how many rotated input sets."""

    launches: int
    sets: int

    def __post_init__(self) -> None:
        _check_sampling(self.launches, self.sets)


def _check_sampling(launches: int, sets: int) -> None:
    if launches < 1:
        raise ValueError(f"launches must be 1 or more, not {launches}")
    if not 1 <= sets <= MOST_SETS:
        raise ValueError(f"sets must be from 1 to {MOST_SETS}, not {sets}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one process has to say about a variant: the unit of evidence.

    ``launches`` is launches per sample, ``backend`` how they were issued (graph, loop, host),
    ``pace`` the spin as a multiple of the sample, ``sets`` the number of rotated input sets,
    ``error`` the relative error against the reference. ``exact`` holds metrics without noise,
    ``phases_s`` where the worker's wall time went, ``busy_s`` how long its samples' launches ran.
    """

    slot: int
    seed: int
    unit: str = ""
    launches: int = 1
    backend: str = ""
    pace: float = 0.0
    sets: int = 1
    settled: bool = True
    error: float | None = None
    blocks: tuple[Block, ...] = ()
    exact: Mapping[str, float] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    busy_s: float = 0.0
    artefact: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_sampling(self.launches, self.sets)
        check_names(self.exact)

    @property
    def sampling(self) -> Sampling | None:
        """How it was sampled; None for what is counted or played, or was only checked."""
        is_launched = self.backend in {"graph", "loop", "host"}
        return Sampling(self.launches, self.sets) if is_launched else None

    def samples(self, metric: str) -> list[list[float]]:
        """Return the samples of ``time_us``, ``cycles`` or another metric, block by block."""
        if metric in {"time_us", "cycles"}:
            return [list(getattr(block, metric)) for block in self.blocks]
        return [list(block.metrics.get(metric, ())) for block in self.blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one variant's measuring ended in one stage, with the evidence of each process.

    ``arm`` is A for another revision's; ``claim`` is the id of one that it was measured for.
    """

    variant: str
    status: Status
    stage: Stage = Stage.SCREEN
    reason: str = ""
    output: str = ""
    evidence: tuple[Evidence, ...] = ()
    case_version: int = 1
    wall_s: float = 0.0
    arm: Arm = Arm.B
    claim: str = ""

    @property
    def is_aside(self) -> bool:
        """Say whether it is no measuring of the run's own code as any run does it."""
        return self.arm is Arm.A or bool(self.claim)


def foreign_share(evidence: Iterable[Evidence]) -> float:
    """Return the share of the device that others took in the middle block; 0 where unknown."""
    seen = [
        block.health.foreign_percent or 0.0
        for process in evidence
        for block in process.blocks
        if block.health
    ]
    return median(seen) / 100 if seen else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the inventory lists it, before anything is run on it.

    ``board`` is the part number of its board, where the driver says one.
    """

    index: int
    uuid: str
    name: str
    board: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """The exact product that baselines are keyed by: a slug, and the facts that must match."""

    slug: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a device says of itself, as flat text.

    ``identity`` makes the SKU, ``state`` blocks a comparison when it differs, ``environment`` is
    shown as a diff. ``unit`` tells one card from another without naming it.
    """

    device: str
    name: str
    unit: str
    identity: Mapping[str, str]
    state: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    arch: str = ""
    gpus: int = 0
    memory_bytes: int = 0
    clocks: tuple[str, ...] = ("time_us",)
    features: tuple[str, ...] = ()
