"""What panel, server and worker say to each other, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsuite.model import (
    Accelerator,
    Axes,
    Code,
    DeviceFacts,
    Evidence,
    Kernel,
    Sampling,
    Settings,
    Status,
    TracedKernel,
    Tree,
)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another variant of the same case, to be measured in turns with a job's own, in quads."""

    axes: Axes
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker is to measure, and as which process of its variant.

    ``ranks`` is 0 where no gang is needed; else the worker joins the others at ``rendezvous``, a
    file. ``kernels`` are all packs' kernels, for a pack whose hook asks for them. ``tree`` is where
    code that is imported by name comes from, where two revisions are compared. ``accelerator`` is
    the device, if a pack brings it.
    """

    pack: str
    origin: str
    case: str
    axes: Axes
    device: str
    settings: Settings
    seed: int
    slot: int
    rank: int = 0
    ranks: int = 0
    rendezvous: str = ""
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None
    rival: Rival | None = None
    accelerator: Accelerator | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """Panel to server: say hello once more."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Server to panel: everything is imported, workers can be forked."""

    pid: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Panel to server: fork a worker; the handles of its socket and its output file follow."""


@dataclass(frozen=True, slots=True)
class Forked:
    """Server to panel: the worker runs, as leader of its own process group."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Panel to server: kill the worker's process group after ``grace_s``, and say how it ended."""

    pid: int
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exited:
    """Server to panel: exit code (minus the signal), and whether the server had to kill it.

    ``code`` is None when the process did not even leave when killed.
    """

    pid: int
    code: int | None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """Panel to worker: open the device and say what it is."""

    device: str
    accelerator: Accelerator | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """Worker to panel: the answer to ``Describe``."""

    facts: DeviceFacts


@dataclass(frozen=True, slots=True)
class Start:
    """Panel to worker: open the device and load the pack, launch nothing yet."""

    job: Job


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to panel: the answer to ``Start``."""


@dataclass(frozen=True, slots=True)
class Check:
    """Panel to worker: build and check; others may do the same meanwhile.

    ``is_thorough`` asks for the whole check; a variant's further processes check once.
    """

    is_thorough: bool = True


@dataclass(frozen=True, slots=True)
class Checked:
    """Worker to panel: the answer to ``Check``."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Panel to worker: it is your turn to calibrate and settle, with the device to yourself.

    ``sampling`` is that of the baseline or of the process before, None where there is none.
    """

    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker to panel: a phase begins."""

    phase: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Worker to panel: the answer to ``Prepare``, with the sampling that was chosen."""

    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Panel to worker: it is your turn to take one block of samples."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Worker to panel: the answer to ``Measure``; the block itself is part of the evidence."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Panel to worker: sum up and leave."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker to panel: the answer to ``Finish``; ``rival`` is the evidence of the job's rival."""

    evidence: Evidence
    rival: Evidence | None = None


@dataclass(frozen=True, slots=True)
class TraceOne:
    """Panel to worker: say what a launch of the job's variant is made of; another one may follow.

    ``sets`` is how many input sets launches rotate over, as they were measured.
    """

    job: Job
    sets: int = 1


@dataclass(frozen=True, slots=True)
class Traced:
    """Worker to panel: the answer to ``TraceOne``; ``texts`` holds the PTX of its codes by hash."""

    kernels: tuple[TracedKernel, ...]
    codes: tuple[Code, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker to panel: the variant ended, and why; the worker leaves."""

    status: Status
    reason: str


_Asked = Ping | Fork | Reap | Describe | Start | Check | Prepare | Measure | Finish
_Answer = Hello | Forked | Exited | Described | Ready | Checked | Prepared | Measured | Finished
Message = _Asked | _Answer | Progress | TraceOne | Traced | Failed
