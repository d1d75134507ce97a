"""Where and how a panel measures, and the environment its processes get."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import perfsuite
from perfsuite.boundary import python_path
from perfsuite.model import Accelerator, Arm, Gpu, Kernel, Settings, Tree

# The share of the machine's memory that the workers of one panel may use together.
MEMORY_SHARE = 0.8
# They make a process trace itself from its start.
TRACERS = {"COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", "PYTHONTRACEMALLOC"}
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the workers of an arm load: its packs' origins by name, all kernels, and its tree."""

    origins: Mapping[str, str]
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One device to measure on, with what its workers need to know.

    ``gpus`` are those its workers see, none where the device is no GPU: one, or all of a gang's,
    by rank. ``kernels`` are all packs' kernels. ``origins`` gives each pack's origin by name.
    ``arms`` is the code of both arms where two are compared. ``accelerator`` is the device that a
    pack brings, with the one unit that is meant.
    ``memory_limit_bytes`` is the host memory one worker may hold (0: its share of the machine).
    """

    device: str
    gpus: tuple[Gpu, ...] = ()
    slots: int = 3
    settings: Settings = field(default_factory=Settings)
    origins: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    arms: Mapping[Arm, Code] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    memory_limit_bytes: int = 0

    def code(self, arm: Arm) -> Code:
        """Return what workers of an arm load."""
        return self.arms.get(arm) or Code(origins=self.origins, kernels=self.kernels)

    @property
    def is_host_measured(self) -> bool:
        """Say whether what is measured are the cores that a worker's start would take."""
        return self.device == "cpu"

    @property
    def worker_bytes(self) -> int:
        """The host memory one worker may hold."""
        return self.memory_limit_bytes or int(MEMORY_SHARE * host_bytes() / self.slots)

    def environment(self) -> dict[str, str]:
        """Return the environment of a server: its GPUs or none, and its own hash seed."""
        values = child_environment()
        values["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in self.gpus)
        # Processes are the unit of evidence: they must not share what a fresh start would vary.
        values.pop("PYTHONHASHSEED", None)
        # What is measured is not traced, also where coverage is asked to follow subprocesses.
        for name in TRACERS & values.keys():
            del values[name]
        return values


def child_environment() -> dict[str, str]:
    """Return this process's environment, in which a child finds this very perfsuite."""
    values = dict(os.environ)
    home = str(Path(perfsuite.__file__).parents[1])
    first = [] if home in sysconfig.get_paths().values() else [home]
    values["PYTHONPATH"] = python_path(*first)
    return values


def host_bytes() -> int:
    """Return the memory this machine, or the container around this process, has."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():  # "max" where there is no limit
            sizes.append(int(text))
    return min(sizes)
