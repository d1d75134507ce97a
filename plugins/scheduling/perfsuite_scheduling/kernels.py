"""The pack's kernels as plain data, for whoever compiles and inspects them without a GPU."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_scheduling import (
    kernels_hosts,
    kernels_sync,
    launch_latency,
    smoothing,
    streams,
    work_queue,
)

_POINTER = "*fp32"
_PACKAGE = "perfsuite_scheduling"
_TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _cuda(file: Path, function: str, options: tuple[str, ...] = ()) -> Kernel:
    name = f"{file.stem}.{function}"
    return Kernel(name=name, language="cuda", function=function, file=str(file), options=options)


def _pdl(*, early: bool) -> Kernel:
    return Kernel(
        name=f"pdl.step_{'early' if early else 'plain'}",
        language="triton",
        function="step_kernel",
        module=f"{_PACKAGE}.pdl_triton",
        signature={"source": _POINTER, "target": _POINTER, "n": "i32"},
        constants={"EARLY": early, "BLOCK": 256},
        aligned=("source", "target", "n"),
        # What griddepcontrol.launch_dependents becomes.
        expects=dict.fromkeys(_TARGETS, "PREEXIT") if early else {},
    )


KERNELS: tuple[Kernel, ...] = (
    *(_cuda(launch_latency.SOURCE, name) for name in launch_latency.FUNCTIONS.values()),
    *(_cuda(smoothing.SOURCE, name, smoothing.OPTIONS) for name in ("step", "steps")),
    _cuda(streams.SOURCE, "advance", streams.OPTIONS),
    *(_cuda(work_queue.SOURCE, name, work_queue.OPTIONS) for name in work_queue.FUNCTIONS.values()),
    Kernel(
        name="launch_latency.add_one_kernel",
        language="triton",
        function="add_one_kernel",
        module=f"{_PACKAGE}.launch_latency_triton",
        signature={"source": "*i32", "target": "*i32"},
        aligned=("source", "target"),
        num_warps=1,
    ),
    Kernel(
        name="kernel_fusion.gelu_kernel",
        language="triton",
        function="gelu_kernel",
        module=f"{_PACKAGE}.kernel_fusion_triton",
        signature={"x": _POINTER, "y": _POINTER, "n": "i32"},
        constants={"BLOCK": 1024},
        aligned=("x", "y", "n"),
    ),
    _pdl(early=False),
    _pdl(early=True),
    *kernels_sync.KERNELS,
    *kernels_hosts.KERNELS,
)
