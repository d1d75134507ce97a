"""perfsuite: a GPU performance regression suite. The names here are what packs may import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    Budget,
    Buildable,
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
    Scalar,
    Scenario,
    Section,
    Tier,
    TracedKernel,
    Variant,
    Verdict,
    Work,
    Workload,
)

__version__ = "0.1.0"

__all__ = [
    "KERNELS", "Accelerator", "Budget", "Case", "CaseError", "Claim", "Comparison", "Context",
    "Device", "DeviceError", "DeviceFacts", "Group", "Health", "Inspection", "Kernel", "Loaded",
    "MachineCode", "Metric", "Need", "Opcodes", "PerfError", "Regime", "Result", "Rng", "Run",
    "Sample", "Scenario", "Section", "Tier", "TracedKernel", "Variant", "Verdict", "Work",
    "Workload", "WrongResultError", "arch", "capture", "case", "count_kernels", "count_operators",
    "cuda", "facts_of", "feature", "gpus", "graph_kernels", "hookimpl", "on_device", "package",
    "read_code",
]  # fmt: skip

_Values = Mapping[str, Sequence[Scalar]]


def case(
    *,
    axes: _Values,
    smoke: _Values | None = None,
    full: _Values | None = None,
    full_only: Sequence[_Values] = (),
    **fields: Any,
) -> Callable[[Callable[..., Buildable]], Case]:
    """Make a case of a builder ``build(ctx, **axes) -> Workload``; its docstring says what it is.

    ``axes`` are the nightly values by name, in the order they stand in ids; ``smoke`` and ``full``
    replace the values of some axes in those tiers. What matches one of ``full_only``, values by
    axis, is in the full tier alone. Other fields are those of ``Case``.
    """

    def wrap(build: Callable[..., Buildable]) -> Case:
        for name in ("needs", "budgets", "tags", "metrics"):
            fields[name] = tuple(fields.get(name, ()))
        return Case(
            name=fields.pop("name", build.__name__),
            build=build,
            axes=_frozen(axes),
            smoke=_frozen(smoke or {}),
            full=_frozen(full or {}),
            full_only=_frozen_bindings(full_only),
            **fields,
        )

    return wrap


def _frozen(values: _Values) -> dict[str, tuple[Scalar, ...]]:
    return {name: tuple(chosen) for name, chosen in values.items()}


def _frozen_bindings(given: Sequence[_Values]) -> tuple[dict[str, tuple[Scalar, ...]], ...]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    for each in given if is_list else ({},):
        values = each.values() if isinstance(each, Mapping) else ()
        if not values or not all(
            isinstance(v, Sequence) and not isinstance(v, str) for v in values
        ):
            raise ValueError(f'full_only={given!r} is no list such as [{{"n": [64]}}]')
    return tuple(map(_frozen, given))


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
