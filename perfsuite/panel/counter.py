"""Has Nsight Compute count what kernels do, each variant in a process of its own under ncu."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite import wire
from perfsuite.counters import DENIED, Counted, command, joined, read
from perfsuite.errors import DeviceError
from perfsuite.isolation import has_exited
from perfsuite.model import Arm, Stage, TracedKernel, Variant
from perfsuite.panel.ending import tail
from perfsuite.panel.job import Turn, job_of
from perfsuite.panel.site import Site

# Starting Python and torch takes most of it; ncu runs each kernel once for every few counters.
ONE_S = 30.0
DEVICES = ("cuda", "fake")


@dataclass(slots=True)
class Counter:
    """Counts one variant after the other on a device, for as long as it is granted.

    ``refused`` says why there is nothing to count with.
    """

    site: Site
    refused: str = ""
    left_s: float = 0.0
    _ncu: str = ""
    _left_out: int = 0
    _failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ncu = shutil.which("ncu") or ""
        if self.site.device not in DEVICES:
            self.refused = f"device {self.site.device} has none of NVIDIA's counters"
        elif not self._ncu:
            self.refused = "NVIDIA's Nsight Compute (ncu) is not on the PATH"

    def counted(
        self, variant: Variant, arm: Arm, kernels: Sequence[TracedKernel]
    ) -> tuple[TracedKernel, ...]:
        """Return the kernels with their counters, or as they are where these are not known."""
        if self.refused or self.left_s <= 0:
            self._left_out += not self.refused
            return tuple(kernels)
        started = time.monotonic()
        try:
            return joined(kernels, self._count(variant, arm))
        except (DeviceError, OSError) as error:
            why = error.what if isinstance(error, DeviceError) else str(error)
            self._failed[variant.id] = why
            self.refused = why if DENIED in why else ""
            return tuple(kernels)
        finally:
            self.left_s -= time.monotonic() - started

    def note(self, limit_s: float) -> str:
        """Say in one line what was not counted and why; nothing where all was."""
        if self.refused:
            return f"no counters: {self.refused}"
        name, why = next(iter(self._failed.items()), ("", ""))
        failed = f"{len(self._failed)} could not be counted (first {name}: {why})"
        left_out = f"{self._left_out} were left out: the limit is {limit_s:g} s"
        parts = [failed if self._failed else "", left_out if self._left_out else ""]
        told = "; ".join(filter(None, parts))
        return f"no counters of some variants: {told}" if told else ""

    def _count(self, variant: Variant, arm: Arm) -> list[Counted]:
        job, limit_s = job_of(Turn(variant, Stage.SCREEN, 0, arm), 0, self.site), self._one_s()
        with tempfile.TemporaryDirectory(prefix="perfsuite-") as folder:
            log, asked = Path(folder, "ncu.csv"), Path(folder, "job.json")
            asked.write_bytes(wire.encode(wire.TraceOne(job)))
            python = (sys.executable, "-P", "-m")
            program = (*python, "perfsuite.counting", str(asked), f"{limit_s:.0f}")
            # A number's decimals and thousands are told apart by the locale.
            environment = {**self.site.environment(), "LC_ALL": "C.UTF-8"}
            said = _run(command(self._ncu, log, *program), limit_s, environment)
            text = log.read_text("utf-8", "replace") if log.is_file() else ""
        if said and DENIED not in text:
            raise DeviceError(said)
        return read(text)

    def _one_s(self) -> float:
        return max(1.0, min(ONE_S, self.left_s))


def _run(words: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> str:
    """Run a command; return the last line of what it printed if it failed, else nothing.

    Raises ``DeviceError`` where it takes longer than its limit.
    """
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            has_ended = has_exited(process.pid, limit_s)
        finally:
            # Not waited for yet, its id is still its group's, in which is what it left running.
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if not has_ended:
            raise DeviceError(f"it took longer than its limit of {limit_s:.0f} s")
        said = tail(output).strip().rpartition("\n")[2]
    return "" if code == 0 else said or f"ncu ended with exit code {code}"
