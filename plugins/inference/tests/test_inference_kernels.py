"""The pack's Triton kernels, compiled and interpreted on the CPU: no GPU is needed."""

from pathlib import Path

import pytest
from kernel_codes import codes_of, wrong_in
from perfsuite_inference import paged_triton

SHARED_LIMIT = 99 << 10  # bytes of shared memory that one block may have on sm_120, the least


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_kernels_spill_nothing_fit_a_block_and_multiply_in_tensor_cores(target: str) -> None:
    codes = codes_of("inference", target)
    for made in codes.values():
        assert not made.spills
        assert made.shared_bytes <= SHARED_LIMIT
    chunk = codes["paged_prefill"]
    assert chunk.count(chunk.expects)
    assert chunk.count("LDGSTS")
    part = codes["paged_attention_part"]
    assert part.count("HMMA")
    assert part.count("LDGSTS")


def test_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    # What is of fp8 is written in bf16.
    script = Path(__file__).with_name("interpret_paged.py")
    assert wrong_in(script, 12, 1e-3, fp8=1e-2, chunk=1e-5) == {}


def test_kernels_around_a_model_are_right_in_the_interpreter() -> None:
    assert wrong_in(Path(__file__).with_name("interpret_serving.py"), 25, 1e-6, tokens=1e-30) == {}


@pytest.mark.parametrize(
    ("rows", "kv_heads", "tokens", "splits"), [(1, 8, 32767, 64), (64, 8, 2047, 1), (1, 8, 100, 2)]
)
def test_rows_are_split_until_the_gpu_is_full_or_a_part_is_one_tile(
    rows: int, kv_heads: int, tokens: int, splits: int
) -> None:
    assert paged_triton.splits_for(rows, kv_heads, tokens) == splits
