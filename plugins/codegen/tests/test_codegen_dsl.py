"""What DSLs of Python compile to, and that a kernel which lost what it was written for is wrong."""

import os
import shutil
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from perfsuite_codegen import dsl

from perfsuite import WrongResultError

pytest.importorskip("triton")


def module_of(name: str) -> Any:
    """Return the module of a DSL's kernels; without the DSL a test is skipped, but not in CI."""
    if os.environ.get("CI") != "true":
        pytest.importorskip(dsl.PACKAGES[name])
    return import_module(f"perfsuite_codegen.dsl_{name}")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        # 32 warps leave a number each, of four bytes.
        ("numba", {"shared_bytes": 32 * 4, "global_load_width": 4, "special_function_ops": 4}),
        ("warp", {"global_loads": 4, "global_load_width": 4, "spill_bytes": 0}),
        # Rows are read and written by TMA.
        ("cutile", {"tma_ops": 8, "global_loads": 0, "spill_bytes": 0}),
        # A lane has 32 of the row's 1,024 numbers, and moves four at once.
        ("cute", {"global_loads": 8, "global_load_width": 16, "shared_bytes": 0}),
    ],
)
def test_a_softmax_has_the_accesses_that_its_dsl_is_known_for(
    name: str, found: dict[str, float]
) -> None:
    module_of(name)
    metrics = dsl.read_metrics("softmax", name, "sm_90a")
    assert {each: metrics[each] for each in found} == found
    declared = {metric.name for metric in dsl.dsl_case().metrics}
    assert {"registers", "instructions", "binary_bytes"} <= metrics.keys() <= declared


@pytest.mark.parametrize(
    ("name", "target", "count", "shared"),
    # One k-step of each: 64 x 128 x 64 by 64x128x16, with 24 KiB; 128 x 128 x 64 four times over.
    [("cute", "sm_90a", 4, 24 << 10), ("cutile", "sm_90a", 16, 0), ("cutile", "sm_100a", 4, 0)],
)
def test_products_use_the_tensor_cores_of_the_target(
    name: str, target: str, count: int, shared: int
) -> None:
    module_of(name)
    metrics = dsl.read_metrics("matmul", name, target)
    assert metrics["tensor_core_ops"] == count
    assert shared in {0, metrics["shared_bytes"]}
    assert 0 < metrics["shared_bytes"] <= 227 << 10


@pytest.mark.parametrize("name", dsl.PACKAGES)
def test_a_longer_name_of_the_checkout_makes_no_code_longer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(module_of(name).__file__ or "")
    metrics = dsl.read_metrics("add", name, "sm_90a")
    there = tmp_path / ("a longer name " * 12) / here.name
    there.parent.mkdir()
    shutil.copy(here, there)
    spec = spec_from_file_location(f"perfsuite_codegen.{here.stem}", there)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert dsl.read_metrics("add", name, "sm_90a") == metrics


def test_a_lost_vectorisation_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    cute = module_of("cute")
    monkeypatch.setattr(cute, "WIDTH", 1)
    with pytest.raises(WrongResultError, match=r"no LDG\.128 in the sm_90a code of add"):
        dsl.read_metrics("add", "cute", "sm_90a")


def test_a_kernel_needs_its_own_dsl_alone() -> None:
    case = dsl.dsl_case()
    for name, package in dsl.PACKAGES.items():
        needed = {need.value for need in case.needs if need.applies({"dsl": name})}
        assert needed == {"triton", package}
    pairs = {(axes["kernel"], axes["dsl"], axes["target"]) for _, axes in case.points}
    assert pairs == {(*key, target) for key, targets in dsl.KERNELS.items() for target in targets}
