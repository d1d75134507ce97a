"""Two clocks from one window: per-SM stamps around a group, in the stream or inside its graph."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cuda.core import ObjectCode

from perfsuite.boundary import DeviceError
from perfsuite.devices.kernels import CudaKernel, compiled
from perfsuite.devices.nvml import visible_arch
from perfsuite.devices.protocol import Sample

STAMPS = Path(__file__).with_name("stamps.cu")
STAMP, ADVANCE, SPIN = "stamp", "advance", "spin"
ROWS = 64
THREADS = 1024
EMPTY_SAMPLES = 16
# Two looks of the spin at the timer lie 0.4 us apart at most; a slice of another process takes
# milliseconds.
AWAY_NS = 50_000
# A spin shorter than this does not hide the host's issuing of a sample.
LEAST_SPIN_US = 100.0
# The CUDA runtime keeps a little of each block's shared memory for itself.
RESERVED_SHARED_BYTES = 1024


@dataclass(slots=True)
class CudaGroup:
    """Launches timed as one sample: a captured graph, a loop, or calls awaited one by one.

    ``returned`` ends with what the last launch of a graph returned.
    """

    issue: Callable[[], None]
    launches: int
    backend: str
    returned: Sequence[Any] = ()

    def __call__(self) -> None:
        """Issue all launches."""
        self.issue()


# By architecture, what a server compiled for the workers that it forks.
_ahead: dict[str, bytes] = {}


def stamps(arch: str) -> ObjectCode:
    """Return the code of the stamps."""
    if arch in _ahead:
        return ObjectCode.from_cubin(_ahead[arch])
    options = (f"-DROWS={ROWS}", f"-DAWAY_NS={AWAY_NS}ull")
    return compiled(str(STAMPS), (STAMP, ADVANCE, SPIN), arch, options)


def compile_ahead() -> None:
    """Compile the stamps for processes that this one forks; nothing where that fails.

    A child does it: compiling initialises CUDA, and what then forks has no GPU (cuda.core 1.2).
    """
    arch = visible_arch()
    reader, writer = os.pipe()
    pid = os.fork() if arch else -1
    if pid == 0:
        with contextlib.suppress(BaseException):
            with os.fdopen(writer, "wb") as out:
                out.write(bytes(stamps(arch).code))
            os._exit(0)
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as made:
        code = made.read()
    # What a child wrote that was killed meanwhile is no code.
    if pid > 0 and os.waitpid(pid, 0)[1] == 0:
        _ahead[arch] = code


class Stopwatch:
    """Stamps of one GPU: ``row`` by row, a stamp before, a stamp after, and the cursor moves on."""

    def __init__(self, stream: torch.cuda.Stream, arch: str, line_up: Callable[[], None]) -> None:
        properties = torch.cuda.get_device_properties(0)
        self.sms = int(properties.multi_processor_count)
        self._slots = 2 * self.sms  # %smid need not be dense, on a MIG slice for one
        self._stream = stream
        self._line_up = line_up
        self._rows = torch.zeros(ROWS, 2, self._slots, 2, dtype=torch.int64, device="cuda")
        self._cursor = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._shared = int(properties.shared_memory_per_block_optin) - RESERVED_SHARED_BYTES
        self._away = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._spun_ns = 0
        code = stamps(arch)
        self._stamp, self._advance, self._spin = (
            CudaKernel(code.get_kernel(name)) for name in (STAMP, ADVANCE, SPIN)
        )
        self.empty = Sample(0.0, 0.0)
        self.empty = self._empty_window()

    def reset(self) -> None:
        """Start at the first row, with no stamps in any."""
        self._rows.zero_()
        self._cursor.zero_()
        self._away.zero_()
        self._spun_ns = 0

    @property
    def spun_s(self) -> float:
        """How long the spins since ``reset`` took."""
        return self._spun_ns / 1e9

    def foreign_percent(self) -> float | None:
        """Return how much of the spins since ``reset`` the GPU gave to other processes."""
        return 100 * int(self._away) / self._spun_ns if self._spun_ns else None

    def spin(self, wait_us: float) -> None:
        """Keep the GPU awake but cool with one thread."""
        wait_ns = int(1e3 * max(LEAST_SPIN_US, wait_us))
        self._spun_ns += wait_ns
        self._spin(1, 1, wait_ns, self._away)

    def stamped(self, issue: Callable[[], None]) -> None:
        """Issue launches between two stamps, the first when all ranks' streams have come here."""
        self._line_up()
        self._mark(0)
        issue()
        self._mark(1)
        self._advance(1, 1, self._cursor)

    def captured(self, issue: Callable[[], None]) -> Callable[[], None]:
        """Capture stamps and launches as one graph, so that no gap of the host's lies between."""
        self._line_up()
        issue()  # Handles, workspaces and lazily loaded modules must exist before capture.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # A destructor that frees device memory breaks the capture.
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self.stamped(issue)
        finally:
            gc.enable()

        def replay() -> None:
            graph.replay()

        return replay

    def read(self, count: int) -> list[Sample]:
        """Return the first ``count`` rows; a row whose stamps missed an SM has NaN as its time."""
        return [self._read(row) for row in self._rows[:count].cpu().unbind(0)]

    def _mark(self, which: int) -> None:
        where: tuple[Any, ...] = (self._rows, self._cursor, which, self._slots)
        self._stamp(self.sms, THREADS, *where, shared_bytes=self._shared)

    def _read(self, row: torch.Tensor) -> Sample:
        seen = (row[0, :, 0] > 0) & (row[1, :, 0] > 0)
        if int(seen.sum()) != self.sms:
            return Sample(float("nan"))
        elapsed = (row[1, seen] - row[0, seen]).double().median(dim=0).values
        time_us = float(elapsed[1]) / 1e3 - self.empty.time_us
        return Sample(time_us, float(elapsed[0]) - self.empty.cycles)

    def _empty_window(self) -> Sample:
        """Time two stamps around nothing, captured like any other group."""
        replay = self.captured(lambda: None)
        self.reset()
        for _ in range(EMPTY_SAMPLES):
            self.spin(LEAST_SPIN_US)
            replay()
        torch.cuda.synchronize()
        good = [s for s in self.read(EMPTY_SAMPLES) if s.time_us == s.time_us]
        if not good:
            raise DeviceError("stamps do not reach every SM", remedy="report this GPU and driver")
        return Sample(
            statistics.median(s.time_us for s in good), statistics.median(s.cycles for s in good)
        )
