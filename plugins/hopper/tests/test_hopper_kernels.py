"""The pack's kernels, compiled for Hopper and read as machine code: no GPU is needed."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hopper_sass import count, opcodes, tool, usage
from pack_scripts import lines_of
from perfsuite_hopper import cluster_dsmem, gemm, tma_copy
from perfsuite_hopper.kernels import KERNELS

HERE = Path(__file__).parent
SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90
SHARED_AN_SM = 228 << 10  # of which each block takes 1 KiB more than it asks for
THREADS_AN_SM, REGISTERS_AN_SM = 2048, 65536
CUDA = {kernel.name: kernel for kernel in KERNELS if kernel.language == "cuda"}


Made = tuple[dict[str, int], Counter[str]]


@cache
def _compiled(name: str) -> Made:
    """Return what a kernel takes and its opcodes."""
    core = pytest.importorskip("cuda.core")
    if tool() is None:
        pytest.skip("cuobjdump comes with triton")
    kernel = CUDA[name]
    macros = [option[2:].partition("=") for option in kernel.options]
    options = core.ProgramOptions(
        std="c++17",
        arch="sm_90a",
        include_path=[str(Path(kernel.file).parent)],
        define_macro=[(name, value) for name, _, value in macros] or None,
    )
    program = core.Program(Path(kernel.file).read_text(encoding="utf-8"), "c++", options)
    made = program.compile("cubin", name_expressions=(kernel.function,))
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(bytes(made.code))
        return usage(cubin), opcodes(cubin)[kernel.function]


@pytest.mark.parametrize("name", CUDA)
def test_kernel_holds_what_it_is_for_and_spills_nothing(name: str) -> None:
    used, counts = _compiled(name)
    assert count(counts, CUDA[name].expects["sm_90a"]) > 0
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    assert count(counts, "LDL") + count(counts, "STL") == 0


@pytest.mark.parametrize("role", ["single_role", "specialized"])
def test_multiplications_are_the_widest_and_copies_are_bulk(role: str) -> None:
    used, counts = _compiled(f"gemm_wgmma.{role}")
    assert counts["HGMMA.64x256x16.F32.BF16"] == gemm.STEP // 16
    assert count(counts, "UTMALDG") >= 2
    assert count(counts, "LDG") == count(counts, "LDS") == 0
    assert count(counts, "USETMAXREG") == (2 if role == "specialized" else 0)
    assert used["REG"] <= (168 if role == "specialized" else 255)


def test_bulk_copy_holds_no_data_in_registers() -> None:
    used, counts = _compiled("copy_bulk")
    assert count(counts, "LDG") == count(counts, "STG") == 0
    assert used["REG"] <= 32


def test_blocks_fit_an_sm_as_often_as_their_launch_says() -> None:
    assert gemm.SHARED_BYTES + 64 <= SHARED_LIMIT
    assert 2 * (gemm.MMA_SHARED_BYTES + 1024) <= SHARED_AN_SM
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
    mma_sync = (Path(gemm.__file__).parent / "mma_sync.cu").read_text(encoding="utf-8")
    for name, value in (("TILE", 128), ("STEP", gemm.STEP), ("SLOTS", 3), ("THREADS", 128)):
        assert f"constexpr int {name} = {value};" in mma_sync
    assert gemm.MMA_SHARED_BYTES == 3 * 2 * 128 * 64 * 2 + 128
    # What setmaxnreg hands from the copying warpgroup to the two others.
    assert 128 * 40 + 256 * 232 <= 384 * 168 <= REGISTERS_AN_SM


def test_matrix_descriptor_is_that_of_the_ptx_manual() -> None:
    # 8 rows of 128 bytes are 1024 bytes: 64 in units of 16, from bit 32 on; swizzle 1 at bit 62.
    assert gemm.matrix_descriptor() == 0x4000004000010000
    # 64-byte rows: 512 bytes, 32 units, swizzle 2.
    assert gemm.matrix_descriptor(row_bytes=64, swizzle=2) == 0x8000002000010000
    assert gemm.wgmma_options(specialized=True) == (
        "-DDESCRIPTOR=0x4000004000010000ull",
        "-DSPECIALIZED=1",
    )


def test_gluon_kernel_compiles_for_hopper_with_roles_and_wgmma() -> None:
    pytest.importorskip("triton")
    row = lines_of(HERE / "compile_gluon.py")[-1]
    assert row["layouts"] == [True] * 3
    kernel = next(each for each in KERNELS if each.language == "gluon")
    assert row["constants"] == [*kernel.constants.values(), kernel.num_warps]
    assert row["shared"] <= SHARED_LIMIT
    assert (row["usage"]["STACK"], row["usage"]["LOCAL"]) == (0, 0)
    counts = Counter(row["opcodes"])
    assert counts["HGMMA.64x256x16.F32.BF16"] == gemm.STEP // 16
    assert count(counts, "UTMALDG") == 2
    assert count(counts, "UTMASTG") >= 1
    assert count(counts, "USETMAXREG") > 0
