"""The kernels of the matrix cases beyond gemm as plain data: to be compiled where no GPU is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_compute import gemv_skinny, mixed_gemm

# Copied from the Triton modules, as in kernels.py. (block_n, block_m, block_k, stages, warps) by
# rows of x and kind of weights.
SKINNY_TILES = {
    (1, "bf16"): (64, 16, 128, 4, 4),
    (64, "bf16"): (64, 64, 128, 4, 4),
    (64, "int8"): (64, 64, 128, 4, 4),
    (256, "int8"): (128, 256, 64, 5, 8),
    (64, "int4"): (128, 64, 128, 4, 8),
    (256, "int4"): (128, 256, 128, 3, 8),
}
SKINNY_FEW = 64
# block_m, block_n, block_k, stages, warps.
STREAM_K = (128, 128, 64, 5, 8)
STREAM_K_HOW = (1, 8, 16)  # rows of tiles in a group, rows of a slice, parts read at once
QUANTISED_COLS = (7168, 16384)
GROUPED = (128, 256, 64, 4, 8)
# 128 KiB of stages and more do not fit the 99 of sm_120.
_LARGE = ("sm_90a", "sm_100a", "sm_103a")
TARGETS = (*_LARGE, "sm_120a")
_WGMMA = {"sm_90a": "HGMMA"}


def kernels() -> list[Kernel]:
    """Return one kernel for each configuration that compiles to its own code."""
    return [
        *(_gemv(n, k) for n, k in ((4096, 14336), (4099, 14336))),
        *(_skinny(kind, m) for m, kind in SKINNY_TILES),
        *(_mixed_gemv(kind, n) for kind in ("int8", "int4") for n in (28672, 28671)),
        _stream_k(),
        _grouped(),
        *(_quantise(to, cols) for to in ("fp8", "int8") for cols in QUANTISED_COLS),
        *_tutorial(),
    ]


def _gemv(n: int, k: int) -> Kernel:
    return Kernel(
        name=f"gemv_rows_{n}",
        language="cuda",
        function="gemv_rows",
        file=str(Path(__file__).with_name("gemv_skinny.cu")),
        options=gemv_skinny.cuda_options(n, k),
    )


def _skinny(kind: str, rows: int) -> Kernel:
    block_n, block_m, block_k, stages, warps = SKINNY_TILES[rows, kind]
    pointers = {
        "x_ptr": "*bf16",
        "w_ptr": {"bf16": "*bf16", "int8": "*i8", "int4": "*u8"}[kind],
        "scale_ptr": "*fp32",
        "y_ptr": "*bf16",
        "partial_ptr": "*fp32",
        "arrived_ptr": "*i32",
    }
    # There are tiles enough for all multiprocessors with many rows: k is not split, and Triton
    # compiles for that.
    is_split = rows <= SKINNY_FEW
    sizes = ("m", "n", "k", "steps", *(("splits",) if is_split else ()))
    return _triton(
        f"skinny_{kind}_{rows}_triton",
        "skinny_triton",
        "skinny_kernel",
        signature={**pointers, **dict.fromkeys(sizes, "i32")},
        constants={
            "KIND": kind,
            "BLOCK_N": block_n,
            "BLOCK_M": block_m,
            "BLOCK_K": block_k,
            "MAGIC": 0x4300,
            "OFFSET": 136.0,
            "SCALED": not is_split,
            "WHOLE": True,
            **({} if is_split else {"splits": 1}),
        },
        aligned=(*pointers, "n", "k"),
        num_warps=warps,
        num_stages=stages,
        targets=TARGETS if rows == 1 else _LARGE,
        expects=_WGMMA,
    )


def _mixed_gemv(kind: str, n: int) -> Kernel:
    return Kernel(
        name=f"mixed_gemv_{kind}_{n}",
        language="cuda",
        function="mixed_gemv",
        file=str(Path(__file__).with_name("mixed_gemv.cu")),
        options=mixed_gemm.cuda_options(n, 4096, kind),
    )


def _stream_k() -> Kernel:
    m, n, k, stages, warps = STREAM_K
    group, rows, parts = STREAM_K_HOW
    return _triton(
        "stream_k_triton",
        "stream_k_triton",
        "stream_k_kernel",
        signature={
            "a_desc": f"tensordesc<bf16[{m},{k}]>",
            "b_desc": f"tensordesc<bf16[{k},{n}]>",
            "c_desc": f"tensordesc<bf16[{m},{n}]>",
            "slice_desc": f"tensordesc<bf16[{rows},{n}]>",
            "partial_ptr": "*fp32",
            "counts_ptr": "*i32",
            **dict.fromkeys(("m", "n", "k", "whole", "peers"), "i32"),
        },
        constants={
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "GROUP": group,
            "SLICE": rows,
            "AT_ONCE": parts,
        },
        aligned=("partial_ptr", "counts_ptr", "n", "k"),
        num_warps=warps,
        num_stages=stages,
        targets=_LARGE,
        expects=_WGMMA,
    )


def _grouped() -> Kernel:
    m, n, k, stages, warps = GROUPED
    return _triton(
        "grouped_gemm_triton",
        "grouped_gemm_triton",
        "grouped_kernel",
        signature={
            "x_desc": f"tensordesc<bf16[{m},{k}]>",
            "w_desc": f"tensordesc<bf16[{n},{k}]>",
            "y_ptr": "*bf16",
            "ends_ptr": "*i32",
            **dict.fromkeys(("groups", "n", "k"), "i32"),
        },
        constants={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k},
        aligned=("y_ptr", "ends_ptr", "groups", "n", "k"),
        num_warps=warps,
        num_stages=stages,
        targets=_LARGE,
        expects=_WGMMA,
    )


def _quantise(to: str, cols: int) -> Kernel:
    block = 1 << (cols - 1).bit_length()
    most = {"fp8": 448.0, "int8": 127.0}[to]
    return _triton(
        f"quantise_{to}_{cols}_triton",
        "quantize_cast_triton",
        "quantise_kernel",
        signature={
            "x_ptr": "*bf16",
            "codes_ptr": {"fp8": "*fp8e4nv", "int8": "*i8"}[to],
            "scale_ptr": "*fp32",
        },
        constants={
            "COLS": cols,
            "BLOCK": block,
            "LARGEST": most,
            "INVERSE": 1 / most,
            "ROUNDING": {"fp8": 0.0, "int8": 12582912.0}[to],
        },
        aligned=("x_ptr", "codes_ptr", "scale_ptr"),
        num_warps=min(16, max(4, block // 1024)),
    )


def _tutorial() -> list[Kernel]:
    floats = "*fp32"
    kernels = (
        ("add", {"x_ptr": floats, "y_ptr": floats, "out_ptr": floats, "n": "i32"}, {"BLOCK": 1024}),
        ("rowsum", {"x_ptr": floats, "out_ptr": floats}, {"COLS": 256}),
        (
            "matmul",
            {"a_ptr": floats, "b_ptr": floats, "c_ptr": floats, "n": "i32"},
            {"TILE": 32, "DEPTH": 64},
        ),
    )
    return [
        _triton(
            f"tutorial_{name}_triton",
            "vecadd_tile_triton",
            f"{name}_kernel",
            signature=signature,
            constants=constants,
            # The vectors have three elements more than a multiple of 16.
            aligned=tuple(key for key in signature if key != "n" or name == "matmul"),
        )
        for name, signature, constants in kernels
    ]


def _triton(name: str, module: str, function: str, **fields: Any) -> Kernel:
    module = f"perfsuite_compute.{module}"
    return Kernel(name=name, language="triton", function=function, module=module, **fields)
