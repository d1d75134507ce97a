"""The pack's kernels as plain data, to be compiled and inspected where no GPU is."""

from __future__ import annotations

from importlib import metadata

from perfsuite import Kernel
from perfsuite_blackwell.formats import FORMATS, Format
from perfsuite_blackwell.tiles import (
    DENSE,
    DENSE_SMALL,
    GROUP,
    ONE_CTA,
    SCALED,
    SCALED_SMALL,
    TWO_CTAS,
    Tiles,
)

_TILE_COUNTS = {"tiles_m": "i32", "tiles_n": "i32", "steps": "i32"}
# Opcodes of tensor cores: HGMMA wgmma; UTCHMMA, UTCQMMA and UTCOMMA tcgen05 in 16, 8 and 4 bits;
# HMMA, QMMA and OMMA those of one warp.
_DENSE = {"sm_90a": "HGMMA", "sm_100a": "UTCHMMA", "sm_103a": "UTCHMMA", "sm_120a": "HMMA"}
_SCALED = {
    "e4m3": {"sm_90a": "HGMMA", "sm_100a": "UTCQMMA", "sm_103a": "UTCQMMA", "sm_120a": "QMMA"},
    "e2m1": {"sm_90a": "HGMMA", "sm_100a": "UTCOMMA", "sm_103a": "UTCOMMA", "sm_120a": "OMMA"},
}
_TCGEN05 = ("sm_100a", "sm_103a")  # elsewhere the compiler aborts the process
_GLUON_SINCE = (3, 7)  # of Triton: barriers that a pair of blocks shares


def kernels() -> list[Kernel]:
    """Return the kernels; those in Gluon only where the installed Triton can compile them."""
    plain = [
        _dense("gemm_triton", DENSE, ("sm_90a", *_TCGEN05)),
        _dense("gemm_triton_small", DENSE_SMALL, ("sm_120a",)),
    ]
    for form in FORMATS.values():
        plain.append(_scaled(f"block_scaled_{form.name}", form, SCALED[form.bits], _TCGEN05))
        # Triton emulates scales of e8m0 on Hopper, and has nothing for those of e4m3.
        others = ("sm_90a", "sm_120a") if form.scale == "e8m0" else ("sm_120a",)
        plain.append(_scaled(f"block_scaled_{form.name}_small", form, SCALED_SMALL, others))
    if _triton_version() < _GLUON_SINCE:
        return plain
    return [*plain, _gluon("gemm_gluon_1cta", ONE_CTA), _gluon("gemm_gluon_2cta", TWO_CTAS)]


def _triton_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return (0, 0)


def _dense(name: str, tiles: Tiles, targets: tuple[str, ...]) -> Kernel:
    return Kernel(
        name=name,
        language="triton",
        function="gemm_kernel",
        module="perfsuite_blackwell.gemm_triton",
        signature={
            "a_desc": f"tensordesc<bf16[{tiles.m},{tiles.k}]>",
            "b_desc": f"tensordesc<bf16[{tiles.k},{tiles.n}]>",
            "c_desc": f"tensordesc<bf16[{tiles.m},{tiles.n}]>",
            **_TILE_COUNTS,
        },
        constants={"BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP": GROUP},
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        targets=targets,
        expects={target: _DENSE[target] for target in targets},
    )


def _gluon(name: str, tiles: Tiles) -> Kernel:
    paired = tiles is TWO_CTAS
    return Kernel(
        name=name,
        language="gluon",
        function="gemm_kernel",
        module="perfsuite_blackwell.gemm_gluon",
        signature={
            "a_desc": f"tensordesc<bf16[{tiles.m},{tiles.k}]>",
            "b_desc": f"tensordesc<bf16[{tiles.k},{tiles.n}]>",
            "c_desc": f"tensordesc<bf16[{tiles.m},{tiles.width}]>",
            **_TILE_COUNTS,
        },
        # Whatever is no argument of the kernel is an option of the compiler.
        constants={
            "STAGES": tiles.stages,
            "GROUP": GROUP,
            "PAIRED": paired,
            "num_ctas": 2 if paired else 1,
        },
        num_warps=tiles.warps,
        targets=_TCGEN05,
        expects=dict.fromkeys(_TCGEN05, "UTCHMMA"),
    )


def _scaled(name: str, form: Format, tiles: Tiles, targets: tuple[str, ...]) -> Kernel:
    code = "u8" if form.element == "e2m1" else "fp8e4nv"
    scale = "u8" if form.scale == "e8m0" else "fp8e4nv"
    width = tiles.k * form.bits // 8
    wide = tiles.k // form.block // 4
    return Kernel(
        name=name,
        language="triton",
        function="block_scaled_kernel",
        module="perfsuite_blackwell.block_scaled_triton",
        signature={
            "a_desc": f"tensordesc<{code}[{tiles.m},{width}]>",
            "a_scales": f"tensordesc<{scale}[1,{tiles.m // 128},{wide},2,256]>",
            "w_desc": f"tensordesc<{code}[{tiles.n},{width}]>",
            "w_scales": f"tensordesc<{scale}[1,{tiles.n // 128},{wide},2,256]>",
            "c_desc": f"tensordesc<bf16[{tiles.m},{tiles.n}]>",
            "factor": "*fp32",
            **_TILE_COUNTS,
        },
        constants={
            "BLOCK_M": tiles.m,
            "BLOCK_N": tiles.n,
            "BLOCK_K": tiles.k,
            "ELEMENT": form.element,
            "SCALED": form.block,
            "GROUP": GROUP,
        },
        aligned=("factor",),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        targets=targets,
        expects={target: _SCALED[form.element][target] for target in targets},
    )
