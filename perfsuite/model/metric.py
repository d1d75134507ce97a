"""What a case reports besides the two clocks, and the kernels a pack hands to be compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

DIRECTIONS = ("lower", "higher", "equal")
# What perfsuite itself takes of launches: two clocks, the device's own time of what the host waits
# for, the energy; and what has no noise, the memory.
NOISY = ("time_us", "cycles", "device_us", "energy_j")
OWN_METRICS = (*NOISY, "peak_bytes")
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for the first that is no name of a metric."""
    for name in names:
        if not METRIC_NAME.match(name):
            raise ValueError(f"metric name {name!r} must match {METRIC_NAME.pattern}")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a case; ``better`` is lower, higher or equal (any change is for the worse).

    ``threshold`` is the relative change that is not worth a word; of a metric with noise it counts
    where it is more than what the noise lets tell.
    """

    name: str
    unit: str = ""
    better: str = "lower"
    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_names((self.name,))
        if self.better not in DIRECTIONS:
            raise ValueError(
                f"metric {self.name!r}: better is {' or '.join(DIRECTIONS)}, not {self.better!r}"
            )
        if not 0 <= self.threshold < 1:
            raise ValueError(f"metric {self.name!r}: threshold must be in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a pack as plain data, so that it can be compiled where no GPU is.

    ``language`` is cuda, triton or gluon. A CUDA C++ kernel is ``function`` of ``file`` with NVRTC
    ``options``; a Triton or Gluon one is ``function`` of ``module`` with its ``signature``
    (argument to type), ``constants``, and ``aligned`` arguments (divisible by 16). ``expects``
    names, by target, an opcode class that the machine code must hold, such as HGMMA.
    """

    name: str
    language: str
    function: str
    file: str = ""
    module: str = ""
    options: tuple[str, ...] = ()
    signature: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    targets: tuple[str, ...] = TARGETS
    expects: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        if not re.match(r"[A-Za-z][A-Za-z0-9_.]*\Z", self.name):
            raise ValueError(f"kernel name {self.name!r} must be a plain name")
        if self.language not in {"cuda", "triton", "gluon"}:
            raise ValueError(
                f"kernel {self.name!r}: language is cuda, triton or gluon, not {self.language!r}"
            )
        if bool(self.file) == bool(self.module) or bool(self.file) != (self.language == "cuda"):
            raise ValueError(f"kernel {self.name!r}: cuda needs a file, the others a module")
