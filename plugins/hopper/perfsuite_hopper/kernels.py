"""The pack's kernels as plain data, for machines without a GPU."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_hopper import cluster_dsmem, gemm, tma_copy

_FOLDER = Path(__file__).parent
_ONLY = ("sm_90a",)  # wgmma exists on no other architecture
# How Triton writes the layout of gemm_gluon's tiles in shared memory.
TILE_LAYOUT = (
    "NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, transposed=False, "
    "fp4_padded=False, cga_layout=[])"
)


def _cuda(
    name: str, file: str, *, expects: str, options: tuple[str, ...] = (), only: bool = True
) -> Kernel:
    targets = _ONLY if only else ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
    return Kernel(
        name=name,
        language="cuda",
        function=name.partition(".")[0],
        file=str(_FOLDER / file),
        options=options,
        targets=targets,
        expects=dict.fromkeys(targets, expects),
    )


def _tile(rows: int, columns: int) -> str:
    return f"tensordesc<bf16[{rows}, {columns}],{TILE_LAYOUT}>"


KERNELS: tuple[Kernel, ...] = (
    _cuda("gemm_mma_sync", "mma_sync.cu", expects="HMMA"),
    *(
        _cuda(
            f"gemm_wgmma.{role}",
            "wgmma.cu",
            expects="HGMMA",
            options=gemm.wgmma_options(specialized=role == "specialized"),
        )
        for role in ("single_role", "specialized")
    ),
    *(
        _cuda(name, "tma_copy.cu", expects=expects, options=tma_copy.cuda_options(), only=False)
        for name, expects in (
            ("copy_vectors", "LDG"),
            ("copy_async", "LDGSTS"),
            ("copy_bulk", "UBLKCP"),
        )
    ),
    *(
        _cuda(
            name, "histogram.cu", expects=expects, options=cluster_dsmem.cuda_options(), only=False
        )
        for name, expects in (("count_global", "REDG"), ("count_cluster", "UCGABAR_ARV"))
    ),
    Kernel(
        name="gemm_gluon",
        language="gluon",
        function="gemm_kernel",
        module="perfsuite_hopper.gemm_gluon",
        signature={
            "a_desc": _tile(128, 64),
            "b_desc": _tile(256, 64),
            "c_desc": _tile(128, 256),
            "m": "i32",
            "n": "i32",
            "k": "i32",
        },
        constants={"SLOTS": 3, "GROUP": 16},
        aligned=("m", "n", "k"),
        num_warps=8,
        targets=_ONLY,
        expects={"sm_90a": "HGMMA"},
    ),
)
