"""The pack's kernels, compiled for Hopper and read as machine code: no GPU is needed."""

from pathlib import Path

import pytest
from kernel_codes import codes_of, kernels_of
from perfsuite_hopper import cluster_dsmem, gemm, tma_copy

SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90
SHARED_AN_SM = 228 << 10  # of which each block takes 1 KiB more than it asks for
THREADS_AN_SM, REGISTERS_AN_SM = 2048, 65536


@pytest.mark.parametrize("name", kernels_of("hopper"))
def test_kernel_holds_what_it_is_for_spills_nothing_and_fits_a_block(name: str) -> None:
    made = codes_of("hopper")[name]
    assert made.count(made.expects) > 0
    assert not made.spills
    assert made.shared_bytes <= SHARED_LIMIT


@pytest.mark.parametrize("role", ["single_role", "specialized"])
def test_multiplications_are_the_widest_and_copies_are_bulk(role: str) -> None:
    made = codes_of("hopper")[f"gemm_wgmma.{role}"]
    assert made.code.opcodes.counts["HGMMA.64x256x16.F32.BF16"] == gemm.STEP // 16
    assert made.count("UTMALDG") >= 2
    assert made.count("LDG", "LDS") == 0
    assert made.count("USETMAXREG") == (2 if role == "specialized" else 0)
    assert made.code.registers <= (168 if role == "specialized" else 255)


def test_bulk_copy_holds_no_data_in_registers() -> None:
    made = codes_of("hopper")["copy_bulk"]
    assert made.count("LDG", "STG") == 0
    assert made.code.registers <= 32


def test_blocks_fit_an_sm_as_often_as_their_launch_says() -> None:
    assert gemm.SHARED_BYTES + 64 <= SHARED_LIMIT
    assert tma_copy.BULK_BLOCKS * (tma_copy.BULK_SHARED_BYTES + 1024 + 64) <= SHARED_AN_SM
    held = tma_copy.SLOTS * tma_copy.THREADS * 16
    assert tma_copy.ASYNC_BLOCKS * (held + 1024) <= SHARED_AN_SM
    assert tma_copy.ASYNC_BLOCKS * tma_copy.THREADS <= THREADS_AN_SM
    own = 4 * cluster_dsmem.BINS // cluster_dsmem.CLUSTER
    assert cluster_dsmem.BLOCKS_PER_SM * (own + 1024) <= SHARED_AN_SM
    assert cluster_dsmem.BLOCKS_PER_SM * cluster_dsmem.THREADS <= THREADS_AN_SM


def test_sizes_of_the_launches_are_those_of_the_sources() -> None:
    wgmma = (Path(gemm.__file__).parent / "wgmma.cu").read_text(encoding="utf-8")
    for name in ("TILE_M", "TILE_N", "STEP", "SLOTS"):
        assert f"constexpr int {name} = {getattr(gemm, name)};" in wgmma
    # What setmaxnreg hands from the copying warpgroup to the two others.
    assert 128 * 40 + 256 * 232 <= 384 * 168 <= REGISTERS_AN_SM


def test_gluon_kernel_has_roles_wgmma_and_bulk_copies() -> None:
    made = codes_of("hopper")["gemm_gluon"]
    assert made.code.opcodes.counts["HGMMA.64x256x16.F32.BF16"] == gemm.STEP // 16
    assert made.count("UTMALDG") == 2
    assert made.count("UTMASTG") >= 1
    assert made.count("USETMAXREG") > 0
