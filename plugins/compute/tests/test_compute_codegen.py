"""The kernels that the pack hands over to be compiled are those that its cases launch."""

from __future__ import annotations

import pytest
from perfsuite_compute import kernels, perf_kernels

KERNELS = {kernel.name: kernel for kernel in perf_kernels()}


def test_every_kernel_of_the_pack_is_handed_over() -> None:
    functions = {(kernel.language, kernel.function) for kernel in KERNELS.values()}
    assert functions >= {
        ("cuda", "softmax_rows"),
        ("cuda", "gemm_naive"),
        ("cuda", "gemm_tiled"),
        ("cuda", "fma_loop"),
        ("triton", "softmax_kernel"),
        ("triton", "gemm_kernel"),
        ("triton", "attention_kernel"),
    }
    assert len(KERNELS) == len(list(perf_kernels()))


def test_configurations_are_those_that_are_launched() -> None:
    pytest.importorskip("triton")
    from perfsuite_compute import attention_triton, gemm_triton, softmax_triton
    from perfsuite_compute.gemm_triton import _GROUP

    for size, tiles in kernels.GEMM_TILES.items():
        assert gemm_triton.tiles_for(size, size) == tiles
    assert _GROUP == kernels.GEMM_GROUP
    module = attention_triton
    launched = (module.BLOCK_M, module.BLOCK_N, module.STAGES, module.WARPS)
    assert launched == kernels.ATTENTION_TILES
    for cols in kernels.SOFTMAX_COLS:
        kernel = KERNELS[f"softmax_bf16_{cols}_triton"]
        assert kernel.num_warps == softmax_triton.warps_for(cols)
        is_ahead = softmax_triton.is_ahead(cols, 2)
        assert kernel.function == ("softmax_ahead_kernel" if is_ahead else "softmax_kernel")
        assert kernel.constants.get("STAGES") == (softmax_triton.STAGES if is_ahead else None)
        assert not softmax_triton.is_ahead(cols, 4)
        assert cols <= float(kernel.constants["BLOCK"]) < 2 * cols


def test_tensor_cores_are_promised_where_matrices_are_multiplied() -> None:
    promised = {name for name, kernel in KERNELS.items() if kernel.expects}
    multiplying = {name for name in KERNELS if name.startswith(("gemm_triton", "attention"))}
    assert multiplying
    assert multiplying <= promised
    assert all(KERNELS[name].expects["sm_90a"] == "HGMMA" for name in promised)
