"""The pack's cases as the catalogue and a CPU see them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from perfsuite_memory import coalescing, h2d, stream, transpose

import perfsuite

SMALL: list[tuple[perfsuite.Case | perfsuite.Operator, dict[str, Any]]] = [
    *((stream.stream, {"op": op, "n": 4099}) for op in stream.INPUTS),
    *((coalescing.coalescing, {"n": 1027, "stride": stride}) for stride in (1, 8)),
    *((transpose.transpose, {"n": n}) for n in (64, 67)),
]


def _name(value: object) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else value.name  # type: ignore[attr-defined]


def test_listing_the_cases_imports_no_torch() -> None:
    code = (
        "import sys, perfsuite_memory as m; assert m.perf_cases();"
        "assert not {'torch', 'triton', 'numpy', 'cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("case", "axes"), SMALL, ids=_name)
def test_torch_agrees_with_the_reference_and_mistakes_do_not(
    case: perfsuite.Case | perfsuite.Operator, axes: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    device = open_device("cpu")
    workload = case.build(device.context(1), impl="torch", **axes)
    assert isinstance(workload, perfsuite.Workload)
    check(device, workload, seed=1)


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
