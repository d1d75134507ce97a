"""The pack's cases as the catalogue and a CPU see them."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from perfsuite_memory import coalescing, h2d, stream, transpose

import perfsuite

SMALL: list[tuple[perfsuite.Case, dict[str, Any]]] = [
    *((stream.stream, {"op": op, "n": 4099}) for op in stream.INPUTS),
    *((coalescing.coalescing, {"n": 1027, "stride": stride}) for stride in (1, 8)),
    *((transpose.transpose, {"n": n}) for n in (64, 67)),
]


def _name(value: object) -> str:
    return value.name if isinstance(value, perfsuite.Case) else "-".join(map(str, value.values()))  # type: ignore[attr-defined]


def test_listing_the_cases_imports_no_torch() -> None:
    code = (
        "import sys, perfsuite_memory as m; assert m.perf_cases();"
        "assert not {'torch', 'triton', 'numpy', 'cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _others(
    case: perfsuite.Case, claim: perfsuite.Claim, side: Mapping[str, Any]
) -> set[tuple[tuple[str, Any], ...]]:
    """Return what the other axes of a claim's side are bound to in the nightly tier."""
    allowed = {**case.axes, **claim.at, **{axis: (value,) for axis, value in side.items()}}
    listed = {axis: set(case.axes[axis]) & set(values) for axis, values in allowed.items()}
    bound = [dict(zip(listed, each, strict=True)) for each in itertools.product(*listed.values())]
    return {
        tuple((axis, value) for axis, value in axes.items() if axis not in side)
        for axes in bound
        if case.only is None or case.only(**axes)
    }


@pytest.mark.parametrize(("case", "axes"), SMALL, ids=_name)
def test_torch_agrees_with_the_reference_and_the_control_does_not(
    case: perfsuite.Case, axes: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    device = open_device("cpu")
    workload = case.build(device.context(1), impl="torch", **axes)
    assert isinstance(workload, perfsuite.Workload)
    rng = device.rng(1)
    inputs = workload.make_inputs(rng)
    expected = workload.reference(*inputs)
    right = []
    for fn in (workload.fn, workload.wrong):
        device.poison(rng.outputs)
        returned = fn(*inputs)
        actual = tuple(rng.outputs) if returned is None else returned
        right.append(device.compare(actual, expected, workload.tolerance).is_right)
    assert right == [True, False]


def test_host_copies_agree_with_the_reference_and_the_control_does_not() -> None:
    torch = pytest.importorskip("torch")
    workload = h2d.h2d.build(None, mib=1, direction="h2d", impl="pinned")
    assert isinstance(workload, perfsuite.Workload)
    source, target = torch.randn(2**18), torch.full((2**18,), math.nan)
    workload.fn(source, target)
    assert torch.equal(target, workload.reference(source, target))
    target.fill_(math.nan)
    workload.wrong(source, target)
    assert not torch.equal(target, workload.reference(source, target))


@pytest.mark.parametrize(
    ("direction", "places"), [("h2d", ["pinned", "device"]), ("d2h", ["device", "pinned"])]
)
def test_a_kernel_copies_page_locked_memory_itself(direction: str, places: list[str]) -> None:
    torch = pytest.importorskip("torch")
    launched = []

    class Context:
        def load_cuda(self, path: Any, name: str, **_: Any) -> Any:
            assert (path.name, name) == ("stream.cu", "stream_copy")
            return lambda tiles, threads, x, out, n: launched.append((tiles * threads, n))

    workload = h2d.h2d.build(Context(), mib=1, direction=direction, impl="zero_copy")
    assert isinstance(workload, perfsuite.Workload)
    source, target = torch.randn(2**18), torch.full((2**18,), math.nan)
    workload.fn(source, target)
    assert launched == [(2**18 // 4, 2**18)]

    class Rng:
        def randn(self, _n: int, *, place: str) -> str:
            return place

        empty = randn

    assert list(workload.make_inputs(Rng())) == places


def _words(case: perfsuite.Case, **axes: Any) -> float:
    assert case.work is not None
    return case.work(**axes).bytes / 4


def test_work_counts_each_byte_that_must_move() -> None:
    n = 2**26
    moved = {op: _words(stream.stream, op=op, n=n, impl="cuda") / n for op in stream.INPUTS}
    assert {op: round(words, 3) for op, words in moved.items()} == {
        "copy": 2, "scale": 2, "add": 3, "triad": 3, "dot": 2, "init": 1, "read": 1,
    }  # fmt: skip
    assert _words(coalescing.coalescing, n=n, stride=32, impl="cuda") == 2 * n
    assert _words(transpose.transpose, n=4096, impl="naive") == 2 * 4096**2
    assert _words(h2d.h2d, mib=16, direction="d2h", impl="pinned") == 4 * 2**20
