"""The pack's kernels as its cases launch them, as plain data: to be compiled where no GPU is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_compute import (
    fma,
    gemm,
    kernels_decode,
    kernels_fused,
    kernels_matrices,
    kernels_sm,
    softmax,
)

# Copied from the Triton modules, which cannot be imported where kernels are only listed; the
# tests hold them equal. (block_m, block_n, block_k, stages, warps) by the least size, as there.
GEMM_TILES = {2048: (128, 256, 64, 4, 8), 1024: (64, 128, 64, 4, 4)}
GEMM_GROUP = 8
# (block_m, block_n, stages, warps) and the width of a head.
ATTENTION_TILES, HEAD = (64, 128, 1, 4), 128
SOFTMAX_COLS = (8191, 8192, 32768)
# The dtype and columns of rows that are copied ahead, and how many are.
SOFTMAX_AHEAD, SOFTMAX_STAGES = ("bf16", 32768), 3
_WGMMA = {"sm_90a": "HGMMA"}
_TENSOR_CORES = {**_WGMMA, "sm_100a": "UTCHMMA", "sm_103a": "UTCHMMA", "sm_120a": "HMMA"}
# Tiles meant for Hopper's 227 KiB of shared memory do not fit the 99 of sm_120.
_LARGE = ("sm_90a", "sm_100a", "sm_103a")


def kernels() -> list[Kernel]:
    """Return one kernel for each size and dtype that compiles to its own code."""
    return [
        *(_softmax_cuda(dtype, cols) for dtype in ("bf16", "fp32") for cols in SOFTMAX_COLS),
        *(_softmax_triton(dtype, cols) for dtype in ("bf16", "fp32") for cols in SOFTMAX_COLS),
        *(_gemm_cuda(name, size) for name in ("naive", "tiled") for size in (1024, 2048)),
        *(_gemm_triton(size) for size in GEMM_TILES),
        _cuda("fma_4096", "fma.cu", "fma_loop", fma.cuda_options(4096)),
        *(_attention(name, causal=name == "causal") for name in ("full", "causal")),
        *kernels_matrices.kernels(),
        *kernels_fused.kernels(),
        *kernels_decode.kernels(),
        *kernels_sm.kernels(),
    ]


def _softmax_cuda(dtype: str, cols: int) -> Kernel:
    options = softmax.cuda_options(dtype, cols)
    return _cuda(f"softmax_{dtype}_{cols}", "softmax.cu", "softmax_rows", options)


def _softmax_triton(dtype: str, cols: int) -> Kernel:
    block = 1 << (cols - 1).bit_length()
    is_ahead = (dtype, cols) == SOFTMAX_AHEAD
    return _triton(
        f"softmax_{dtype}_{cols}_triton",
        "softmax_triton",
        "softmax_ahead_kernel" if is_ahead else "softmax_kernel",
        signature={"x": f"*{dtype}", "y": f"*{dtype}", **({"rows": "i32"} if is_ahead else {})},
        constants={
            "COLS": cols,
            "BLOCK": block,
            **({"STAGES": SOFTMAX_STAGES} if is_ahead else {}),
        },
        aligned=("x", "y", "rows") if is_ahead else ("x", "y"),
        num_warps=min(32, max(4, block // 1024)),
        **({"targets": _LARGE} if is_ahead else {}),
    )


def _gemm_cuda(name: str, size: int) -> Kernel:
    options = gemm.cuda_options(f"gemm_{name}", size, size, size)
    return _cuda(f"gemm_{name}_{size}", "gemm.cu", f"gemm_{name}", options)


def _gemm_triton(size: int) -> Kernel:
    m, n, k, stages, warps = GEMM_TILES[size]
    is_large = size > min(GEMM_TILES)
    return _triton(
        f"gemm_triton_{size}",
        "gemm_triton",
        "gemm_kernel",
        signature={
            "a_desc": f"tensordesc<bf16[{m},{k}]>",
            "b_desc": f"tensordesc<bf16[{k},{n}]>",
            "c_desc": f"tensordesc<bf16[{m},{n // 2}]>",
            **dict.fromkeys("mnk", "i32"),
        },
        constants={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": GEMM_GROUP},
        aligned=("m", "n", "k"),
        num_warps=warps,
        num_stages=stages,
        **_promising(_LARGE if is_large else tuple(_TENSOR_CORES)),
    )


def _attention(name: str, *, causal: bool) -> Kernel:
    m, n, stages, warps = ATTENTION_TILES
    return _triton(
        f"attention_{name}_triton",
        "attention_triton",
        "attention_kernel",
        signature={
            "q_desc": f"tensordesc<bf16[{m},{HEAD}]>",
            "k_desc": f"tensordesc<bf16[{n},{HEAD}]>",
            "v_desc": f"tensordesc<bf16[{n},{HEAD}]>",
            "out": "*bf16",
            "s": "i32",
            "scale": "fp32",
        },
        constants={"D": HEAD, "BLOCK_M": m, "BLOCK_N": n, "CAUSAL": causal},
        aligned=("out", "s"),
        num_warps=warps,
        num_stages=stages,
        **_promising(_LARGE),
    )


def _promising(targets: tuple[str, ...]) -> dict[str, Any]:
    return {"targets": targets, "expects": {target: _TENSOR_CORES[target] for target in targets}}


def _cuda(name: str, file: str, function: str, options: tuple[str, ...]) -> Kernel:
    path = str(Path(__file__).with_name(file))
    return Kernel(name=name, language="cuda", function=function, file=path, options=options)


def _triton(name: str, module: str, function: str, **fields: Any) -> Kernel:
    module = f"perfsuite_compute.{module}"
    return Kernel(name=name, language="triton", function=function, module=module, **fields)
