"""The pack's kernels, compiled for Hopper and interpreted on the CPU: no GPU is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of

HERE = Path(__file__).parent
SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90


@cache
def _compiled() -> list[dict[str, Any]]:
    pytest.importorskip("triton")
    pytest.importorskip("cuda.core")
    return lines_of(HERE / "kernels_sm90.py")


def test_every_kernel_compiles_for_hopper_without_spilling() -> None:
    rows = _compiled()
    assert len(rows) == 25
    assert [row["name"] for row in rows if row["spilled"]] == []
    assert sum(row["LDL"] + row["STL"] for row in rows) == 0
    assert min(row["registers"] for row in rows) > 10


def test_triton_kernels_fit_a_block_s_shared_memory() -> None:
    assert max(row["shared"] for row in _compiled()) <= SHARED_LIMIT


@pytest.mark.parametrize("name", ["gemm_triton", "attention_triton"])
def test_matrix_kernels_use_wgmma_and_bulk_copies(name: str) -> None:
    rows = [row for row in _compiled() if row["name"].startswith(name)]
    assert rows
    assert all(row["HGMMA"] and row["UTMALDG"] and not row["LDG"] for row in rows)


def test_cuda_softmax_reads_16_bytes_at_a_time_also_in_odd_rows() -> None:
    loads = {row["name"]: row["LDG"] for row in _compiled() if row["name"].startswith("softmax.cu")}
    odd = loads["softmax.cu:softmax_rows -DCOLS=8191 -DTHREADS=256 -DBF16"]
    even = loads["softmax.cu:softmax_rows -DCOLS=8192 -DTHREADS=256 -DBF16"]
    assert (odd, even) == (5, 4)  # 8192 x 2 bytes / 256 threads / 16, and one for the ragged ends


def test_triton_softmax_takes_only_the_ends_of_odd_rows_one_by_one() -> None:
    loads = {row["name"]: row["LDG"] for row in _compiled()}
    # 8192 x 2 or 4 bytes / 256 threads / 16, and one for both ends.
    assert loads["softmax_triton bf16 8191"] == loads["softmax_triton bf16 8192"] + 1 == 5
    assert loads["softmax_triton fp32 8191"] == loads["softmax_triton fp32 8192"] + 1 == 9


def test_triton_softmax_copies_wide_rows_ahead() -> None:
    row = next(row for row in _compiled() if row["name"] == "softmax_triton bf16 32768")
    # Two rows before the loop and one in it, 32 values a thread; nothing is loaded otherwise.
    assert row["LDGSTS"] == 3 * 32 * 2 // 16
    assert not row["LDG"]


def test_triton_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    rows = lines_of(HERE / "interpret.py", TRITON_INTERPRET="1")
    assert len(rows) == 15
    assert {row["name"]: row["error"] for row in rows if not row["error"] < 2e-3} == {}
