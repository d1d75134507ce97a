"""What a launch is made of: the kernels it runs, and the code of those that are our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsuite.model.arms import Arm


def function_of(name: str) -> str:
    """Return a kernel's name without its type, the arguments of its template and its own."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("(")[0].partition("<")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """A kernel that a launch runs ``count`` times, ``duration_us`` each (median), shaped alike.

    On the CPU it is one of torch's operators, without what those that it calls take.
    ``counters`` is what Nsight Compute counts of one run of it, where that was asked for:
    ``requests_read`` and ``requests_written`` of warps to global memory, the ``sectors_read`` and
    ``sectors_written`` (32 bytes each) that they touch, those of L2 and of DRAM whoever asks
    (``l2_sectors_read``, ``dram_sectors_written``...), and ``bank_conflicts`` of shared memory.
    """

    name: str
    count: float
    duration_us: float
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    shared_bytes: int = 0
    counters: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def function(self) -> str:
        """Its name without its type, the arguments of its template and its own."""
        return function_of(self.name)

    @property
    def total_us(self) -> float:
        """What it takes of one launch."""
        return self.count * self.duration_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The code of a kernel that is compiled here, by NVRTC or Triton.

    ``ptx`` is a hash of the PTX without line information, ``facts`` what the machine code takes
    and does (registers, spill_bytes, counts by class of opcode). ``diff`` is that of the PTX from
    what the run was compared with, where both texts were at hand.
    """

    name: str
    ptx: str
    facts: Mapping[str, float] = field(default_factory=dict)
    diff: str = ""

    @property
    def function(self) -> str:
        """Its name as a kernel of it has it."""
        return function_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The kernels of one launch of a variant; without any, ``reason`` says why."""

    variant: str
    arm: Arm = Arm.B
    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()
    reason: str = ""
