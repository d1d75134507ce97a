"""The pack's Triton kernels, compiled and interpreted on the CPU: no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pack_scripts import lines_of
from perfsuite_inference import paged_triton, perf_kernels

import perfsuite

SHARED_LIMIT = 99 << 10  # bytes of shared memory that one block may have on sm_120, the least
# Attention multiplies in tensor cores and loads ahead.
USES = {"paged_attention_part": ("HMMA", "LDGSTS"), "paged_attention_join": ()}


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("kernel", perf_kernels(), ids=lambda kernel: kernel.name)
def test_kernels_fit_a_block_and_spill_nothing(kernel: perfsuite.Kernel, target: str) -> None:
    pytest.importorskip("triton")
    binary = pytest.importorskip("perfsuite_codegen.compiling").compile_kernel(kernel, target)
    code = perfsuite.read_code(binary.cubin, binary.symbol)
    assert code.stack_bytes + code.opcodes.of("LDL", "STL") == 0
    assert binary.shared_bytes <= SHARED_LIMIT
    assert all(code.opcodes.has(opcode) for opcode in USES[kernel.name])


def test_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    rows = lines_of(Path(__file__).with_name("interpret_paged.py"), TRITON_INTERPRET="1")
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
