"""The kernels of decoding as they are launched, as plain data."""

from __future__ import annotations

from typing import Any

from perfsuite import Kernel
from perfsuite_compute.kernels_fused import LARGE, triton_kernel

# Tiles meant for Hopper's shared memory; in Gluon also its products of matrices.
_ON_HOPPER: dict[str, Any] = {"targets": ("sm_90a",), "expects": {"sm_90a": "HGMMA"}}
# How Triton writes the layout of gqa_mla_gluon's tiles in shared memory.
TILE_LAYOUT = (
    "NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, transposed=False, "
    "fp4_padded=False, cga_layout=[])"
)
_PARTS = {
    **dict.fromkeys(("sums_out", "total_out", "peak_out"), "*fp32"),
    **dict.fromkeys(("s", "share"), "i32"),
    "scale": "fp32",
}


def kernels() -> list[Kernel]:
    """Return one kernel for each size that compiles to its own code."""
    return [
        *(_decode(group) for group in (1, 4)),
        _mla_decode(),
        _mla_decode_gluon(),
        *(_join(splits, width) for splits, width in ((3, 128), (2, 512))),
    ]


def _decode(group: int) -> Kernel:
    descriptors = dict.fromkeys(("k_desc", "v_desc"), "tensordesc<bf16[64,128]>")
    return triton_kernel(
        f"decode_{group}",
        "gqa_mla_triton.decode_kernel",
        signature={"q": "*bf16", **descriptors, **_PARTS},
        constants={"GROUP": group, "ROWS": 16, "D": 128, "BLOCK_N": 64},
        num_stages=3,
        targets=LARGE,
    )


def _mla_decode() -> Kernel:
    return triton_kernel(
        "mla_decode",
        "gqa_mla_triton.mla_decode_kernel",
        signature={
            "q": "*bf16",
            "cache": "*bf16",
            "latent_desc": "tensordesc<bf16[64,512]>",
            "rope_desc": "tensordesc<bf16[64,64]>",
            **_PARTS,
        },
        constants={
            "HEADS": 128,
            "ROWS": 64,
            "LATENT": 512,
            "ROPE": 64,
            "BLOCK_N": 64,
            "AHEAD": True,
        },
        num_warps=8,
        num_stages=2,
        **_ON_HOPPER,
    )


def _mla_decode_gluon() -> Kernel:
    wide, narrow = (f"tensordesc<bf16[64, {width}],{TILE_LAYOUT}>" for width in (512, 64))
    return Kernel(
        name="mla_decode_gluon",
        language="gluon",
        module="perfsuite_compute.gqa_mla_gluon",
        function="mla_decode_kernel",
        signature={
            **dict.fromkeys(("q_desc", "latent_desc"), wide),
            **dict.fromkeys(("q_rope_desc", "rope_desc"), narrow),
            **_PARTS,
        },
        constants={"HEADS": 128},
        aligned=tuple(name for name in _PARTS if name != "scale"),
        num_warps=8,
        **_ON_HOPPER,
    )


def _join(splits: int, width: int) -> Kernel:
    return triton_kernel(
        f"decode_join_{splits}_{width}",
        "gqa_mla_triton.join_kernel",
        signature={**dict.fromkeys(("sums", "totals", "peaks"), "*fp32"), "out": "*bf16"},
        constants={"SPLITS": splits, "DV": width},
    )
