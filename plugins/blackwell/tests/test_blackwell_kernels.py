"""The pack's kernels, compiled for each target in a child process: no GPU is needed."""

from pathlib import Path

import pytest
from kernel_codes import codes_of, wrong_in

KIB = 1 << 10
# Shared memory that one block may have; CUDA C++ Programming Guide, technical specifications.
SHARED_LIMITS = {
    "sm_90a": 227 * KIB,
    "sm_100a": 227 * KIB,
    "sm_103a": 227 * KIB,
    "sm_120a": 99 * KIB,
}
TARGETS = pytest.mark.parametrize("target", SHARED_LIMITS)
TCGEN05 = pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
COLUMNS = 512  # of tensor memory


@TARGETS
def test_every_kernel_compiles_to_the_tensor_cores_of_its_target(target: str) -> None:
    for name, made in codes_of("blackwell", target).items():
        assert made.expects, name
        assert made.count(made.expects), name


@TARGETS
def test_no_kernel_spills_or_takes_more_than_a_block_may_have(target: str) -> None:
    for name, made in codes_of("blackwell", target).items():
        assert made.shared_bytes <= SHARED_LIMITS[target], name
        assert made.columns <= COLUMNS, name
        # Triton 3.6 keeps 8 bytes on the stack of kernels for sm_120.
        assert made.code.stack_bytes <= (8 if target == "sm_120a" else 0), name


@TARGETS
def test_operands_come_in_bulk_copies_only(target: str) -> None:
    for name, made in codes_of("blackwell", target).items():
        assert made.count("UTMALDG"), name
        # One load: the tensors' factor.
        assert made.count("LDG") <= 1, name
        assert not made.count("LDGSTS"), name


@TCGEN05
def test_a_pair_of_blocks_multiplies_together(target: str) -> None:
    codes = codes_of("blackwell", target)
    if "gemm_gluon_2cta" not in codes:
        pytest.skip("the kernels in Gluon need Triton 3.7")
    for name, product in (("gemm_gluon_2cta", "UTCHMMA.2CTA"), ("gemm_gluon_1cta", "UTCHMMA")):
        found = codes[name].code.opcodes.counts
        # Each in 4 steps of 16 of k, written once: the loop is not unrolled.
        assert {each: n for each, n in found.items() if "MMA" in each} == {product: 4}


@TCGEN05
def test_scales_of_blocks_go_through_tensor_memory(target: str) -> None:
    codes = codes_of("blackwell", target)
    scaled = [made for name, made in codes.items() if name.startswith("block_scaled")]
    assert len(scaled) == 3
    assert all(made.count("UTCCP") for made in scaled)


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    assert wrong_in(Path(__file__).with_name("interpret.py"), 4, 2e-3) == {}
