"""perfsuite: a GPU performance regression suite. The names here are what packs may import."""

from __future__ import annotations

from perfsuite.boundary import CaseError, DeviceError, PerfError, WrongResultError
from perfsuite.devices.protocol import (
    KERNELS,
    Comparison,
    Context,
    Device,
    Group,
    Loaded,
    Rng,
    Sample,
    capture,
    count_kernels,
    count_operators,
    graph_kernels,
)
from perfsuite.devices.sass import MachineCode, Opcodes, facts_of, read_code
from perfsuite.hooks import hookimpl
from perfsuite.model import (
    Accelerator,
    Beats,
    Budget,
    Case,
    Claim,
    DeviceFacts,
    Health,
    Inspection,
    Kernel,
    Metric,
    Need,
    Regime,
    Result,
    Run,
    Scenario,
    Section,
    Tier,
    TracedKernel,
    Variant,
    Verdict,
    Work,
    Workload,
)
from perfsuite.packs.declare import Implementation, Operator, case, operator

__version__ = "0.1.0"
# What packs rely on. A pack's module states the one it was written for: PERFSUITE_API = 2.
API_VERSION = 2

__all__ = [
    "API_VERSION", "KERNELS", "Accelerator", "Beats", "Budget", "Case", "CaseError", "Claim",
    "Comparison", "Context", "Device", "DeviceError", "DeviceFacts", "Group", "Health",
    "Implementation", "Inspection", "Kernel", "Loaded", "MachineCode", "Metric", "Need", "Opcodes",
    "Operator", "PerfError", "Regime", "Result", "Rng", "Run", "Sample", "Scenario", "Section",
    "Tier", "TracedKernel", "Variant", "Verdict", "Work", "Workload", "WrongResultError", "arch",
    "capture", "case", "count_kernels", "count_operators", "cuda", "facts_of", "feature", "gpus",
    "graph_kernels", "hookimpl", "on_device", "operator", "package", "read_code",
]  # fmt: skip


def cuda() -> Need:
    """Need a CUDA GPU."""
    return Need("device", "cuda")


def on_device(name: str) -> Need:
    """Need a device by its name, such as one that a pack brings."""
    return Need("device", name)


def arch(spec: str) -> Need:
    """Need an architecture: ``sm_90`` (exactly) or ``sm_80+`` (that or newer)."""
    return Need("arch", spec)


def gpus(count: int) -> Need:
    """Need this many GPUs."""
    return Need("gpus", str(count))


def package(name: str) -> Need:
    """Need an importable package, found without importing it."""
    return Need("package", name)


def feature(name: str) -> Need:
    """Need a feature that the device reports, such as ``fp8``."""
    return Need("feature", name)
