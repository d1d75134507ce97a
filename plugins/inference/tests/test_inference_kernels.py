"""The pack's Triton kernels, compiled and interpreted on the CPU: no GPU is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_inference import paged_triton, perf_kernels

HERE = Path(__file__).parent
SHARED_LIMIT = 99 << 10  # bytes of shared memory that one block may have on sm_120, the least


@cache
def _compiled() -> list[dict[str, Any]]:
    pytest.importorskip("triton")
    return lines_of(HERE / "compile_kernels.py", "90", "120")


def test_kernels_compile_without_spilling_and_fit_a_block() -> None:
    rows = _compiled()
    assert len(rows) == 2 * len(perf_kernels())
    assert [row for row in rows if row["spilled"] or row["shared"] > SHARED_LIMIT] == []


def test_attention_multiplies_in_tensor_cores_and_loads_ahead() -> None:
    parts = [row for row in _compiled() if row["name"] == "paged_attention_part"]
    assert parts
    assert all({"HMMA", "LDGSTS"} <= set(row["opcodes"]) for row in parts)


def test_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    rows = lines_of(HERE / "interpret_paged.py", TRITON_INTERPRET="1")
    assert len(rows) == 4
    assert {row["name"]: row["error"] for row in rows if not row["error"] < 1e-3} == {}


def test_kernels_are_declared_with_the_constants_that_they_are_launched_with() -> None:
    part, join = perf_kernels()
    splits = paged_triton.splits_for(16, 8, 8192)
    assert part.constants["SPLITS"] == join.constants["SPLITS"] == splits
    assert part.constants["TILE"] == paged_triton.TILE
    assert part.constants["PADDED"] == paged_triton.FEWEST
    assert (part.num_warps, part.num_stages) == (paged_triton.WARPS, paged_triton.STAGES)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "tokens", "splits"), [(1, 8, 32767, 64), (64, 8, 2047, 1), (1, 8, 100, 2)]
)
def test_rows_are_split_until_the_gpu_is_full_or_a_part_is_one_tile(
    rows: int, kv_heads: int, tokens: int, splits: int
) -> None:
    assert paged_triton.splits_for(rows, kv_heads, tokens) == splits
