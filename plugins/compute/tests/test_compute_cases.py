"""The pack's cases: what they list, what they count, and that references refuse the mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perfsuite
from perfsuite.packs.load import load_pack

CASES = load_pack("compute", "module:perfsuite_compute@").cases
Axes = dict[str, Any]


def _check(workload: perfsuite.Workload) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


def _built(case: perfsuite.Case, **axes: Any) -> perfsuite.Workload:
    workload = case.build(_context(), **axes)
    assert isinstance(workload, perfsuite.Workload)
    return workload


def _context() -> Any:
    from perfsuite.devices.protocol import open_device

    return open_device("cpu").context(3)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gemm", {"dtype": "bf16", "m": 256, "n": 256, "k": 256, "impl": "torch"}),
    ],
)
def test_bf16_is_within_its_tolerance(name: str, axes: Axes) -> None:
    error = _check(_built(CASES[name], **axes))
    assert error is not None
    assert 1e-4 < error < 1e-2


@pytest.mark.parametrize(("dtype", "limit"), [("fp16", 1e-2), ("int8", 0.0), ("fp64", 1e-12)])
def test_rates_of_other_dtypes_are_of_right_products(dtype: str, limit: float) -> None:
    axes = {"dtype": dtype, "m": 64, "n": 32, "k": 128, "impl": "torch"}
    error = _check(_built(CASES["gemm"], **axes))
    assert error is not None
    assert error <= limit


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gemm", {"dtype": "fp32", "m": 64, "n": 32, "k": 128, "impl": "torch"}),
    ],
)
def test_work_counts_the_operations_that_torch_counts(name: str, axes: Axes) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from perfsuite.devices.protocol import open_device

    case = CASES[name]
    assert case.work is not None
    workload = _built(case, **axes)
    inputs = workload.make_inputs(open_device("cpu").rng(1))
    with FlopCounterMode(display=False) as counter:
        workload.fn(*inputs)
    assert counter.get_total_flops() == case.work(**axes).flops


@pytest.mark.parametrize(
    ("name", "axes", "count"),
    [
        ("pointwise_fusion", {"k": 16, "n": 64, "impl": "eager"}, 16),
        ("rope_swiglu", {"dtype": "fp32", "op": "swiglu", "tokens": 4, "width": 8}, 2),
    ],
)
def test_what_a_launch_starts_is_counted(name: str, axes: Axes, count: float) -> None:
    from perfsuite.devices.protocol import open_device

    workload = _built(CASES[name], **{"impl": "eager", **axes})
    inputs = workload.make_inputs(open_device("cpu").rng(1))
    assert perfsuite.count_kernels(_context(), lambda: workload.fn(*inputs)) == count
    assert CASES[name].metrics == (perfsuite.KERNELS,)


def test_listing_the_cases_imports_no_kernel_library() -> None:
    roots = [str(Path(perfsuite.__file__).parents[1]), str(Path(__file__).parents[1])]
    code = (
        f"import json, sys; sys.path[:0] = {roots!r}; import perfsuite_compute as pack;"
        "assert pack.perf_cases();"
        "print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'cuda') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
