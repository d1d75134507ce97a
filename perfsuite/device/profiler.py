"""What torch's profiler sees: kernels through CUPTI, and on the CPU torch's operators."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from perfsuite.model import TracedKernel

# What Kineto calls that which runs on a GPU.
GPU_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def gpu_kernels(issue: Callable[[], object]) -> list[TracedKernel]:
    """Return each kernel, copy and fill that ``issue`` has the GPU do, in time order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        issue()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        # Grid, block, registers and shared memory are in no other of the profiler's outputs.
        profiler.export_chrome_trace(str(path))
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    return kernels_of(found["traceEvents"])


def shown(issue: Callable[[], object]) -> None:
    """Call ``issue`` between the start and the stop that NVIDIA's profilers wait for."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    issue()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def kernels_of(events: list[dict[str, Any]]) -> list[TracedKernel]:
    """Return the kernels among the events of Kineto's trace, whose times are microseconds."""
    found = [event for event in events if event.get("cat") in GPU_KINDS]
    return [_kernel(event) for event in sorted(found, key=lambda event: float(event["ts"]))]


def _kernel(event: dict[str, Any]) -> TracedKernel:
    given = event.get("args", {})
    return TracedKernel(
        name=str(event["name"]),
        count=1,
        duration_us=float(event.get("dur", 0.0)),
        grid=tuple(map(int, given.get("grid", ()))),
        block=tuple(map(int, given.get("block", ()))),
        registers=int(given.get("registers per thread", 0)),
        shared_bytes=int(given.get("shared memory", 0)),
    )


def cpu_operators(issue: Callable[[], object]) -> list[TracedKernel]:
    """Return each of torch's operators that ``issue`` calls, less what it calls itself."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        issue()
    return [
        TracedKernel(name=event.name, count=1, duration_us=float(event.self_cpu_time_total))
        for event in profiler.events()
    ]
