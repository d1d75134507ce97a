"""The pack's kernels, compiled for each target in a child process: no GPU is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_blackwell import perf_kernels

HERE = Path(__file__).parent
KIB = 1 << 10
# Shared memory that one block may have; CUDA C++ Programming Guide, technical specifications.
SHARED_LIMITS = {
    "sm_90a": 227 * KIB,
    "sm_100a": 227 * KIB,
    "sm_103a": 227 * KIB,
    "sm_120a": 99 * KIB,
}
TARGETS = pytest.mark.parametrize("target", SHARED_LIMITS)
COLUMNS = 512  # of tensor memory


@cache
def _every() -> list[dict[str, Any]]:
    """Compile for all targets in one process: it imports torch and Triton once."""
    pytest.importorskip("triton")
    return lines_of(HERE / "compile_kernels.py", *SHARED_LIMITS)


def _compiled(target: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _every() if row["target"] == target}


@TARGETS
def test_every_kernel_compiles_to_the_tensor_cores_of_its_target(target: str) -> None:
    rows = _compiled(target)
    assert set(rows) == {each.name for each in perf_kernels() if target in each.targets}
    for row in rows.values():
        assert row["opcodes"].get(row["expects"]), (row["name"], row["full"])


@TARGETS
def test_no_kernel_spills_or_takes_more_than_a_block_may_have(target: str) -> None:
    for row in _compiled(target).values():
        assert row["shared"] <= SHARED_LIMITS[target], row["name"]
        assert row["tensor_memory"] <= COLUMNS, row["name"]
        # Triton 3.6 keeps 8 bytes on the stack of kernels for sm_120.
        assert row["spilled"] <= (8 if target == "sm_120a" else 0), row["name"]


@TARGETS
def test_operands_come_in_bulk_copies_only(target: str) -> None:
    for row in _compiled(target).values():
        assert row["opcodes"].get("UTMALDG"), row["name"]
        # One load: the tensors' factor.
        assert row["opcodes"].get("LDG", 0) <= 1, row["name"]
        assert "LDGSTS" not in row["opcodes"], row["name"]


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_a_pair_of_blocks_multiplies_together(target: str) -> None:
    rows = _compiled(target)
    if "gemm_gluon_2cta" not in rows:
        pytest.skip("the kernels in Gluon need Triton 3.7")
    assert rows["gemm_gluon_2cta"]["full"] == ["UTCHMMA.2CTA"]
    assert rows["gemm_gluon_1cta"]["full"] == ["UTCHMMA"]
    # Each in 4 steps of 16 of k, written once: the loop is not unrolled.
    assert rows["gemm_gluon_2cta"]["opcodes"]["UTCHMMA"] == 4


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_scales_of_blocks_go_through_tensor_memory(target: str) -> None:
    rows = [row for name, row in _compiled(target).items() if name.startswith("block_scaled")]
    assert len(rows) == 3
    assert all(row["opcodes"].get("UTCCP") for row in rows)


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    errors = {
        row["name"]: row["error"] for row in lines_of(HERE / "interpret.py", TRITON_INTERPRET="1")
    }
    assert len(errors) == 7
    for name, error in errors.items():
        assert error > 0.05 if "untiled" in name else error < 2e-3, (name, error)
