"""The kernels of the fused cases as they are launched, as plain data."""

from __future__ import annotations

from typing import Any

from perfsuite import Kernel

NORM_COLS = (4095, 4096)
# Tiles meant for Hopper's 227 KiB of shared memory do not fit the 99 of sm_120.
LARGE = ("sm_90a", "sm_100a", "sm_103a")
_ON_TENSOR_CORES: dict[str, Any] = {
    "targets": LARGE,
    "expects": {"sm_90a": "HGMMA", "sm_100a": "UTCHMMA", "sm_103a": "UTCHMMA"},
}


def kernels() -> list[Kernel]:
    """Return one kernel for each size and dtype that compiles to its own code."""
    return [
        *(_norm_forward(op, cols) for op in ("rms", "layer") for cols in NORM_COLS),
        *(_norm_backward(op) for op in ("rms", "layer")),
        _norm_sum(),
        *(_chain(k) for k in (4, 16)),
        _rope(),
        _swiglu(),
        *(_cross_entropy(vocab) for vocab in (50257, 65536)),
        *(_interval_attention(capped=capped) for capped in (False, True)),
        *_scan(),
    ]


def _norm_forward(op: str, cols: int) -> Kernel:
    arrays = dict.fromkeys(("x", "residual", "weight", "bias", "y", "total"), "*bf16")
    if cols % 8:
        return triton_kernel(
            f"norm_{op}_{cols}",
            "norm_odd_triton.norm_odd_kernel",
            signature={**arrays, "eps": "fp32"},
            constants={"COLS": cols, "BLOCK": 4096, "CENTRED": op == "layer", "VECTOR": 8},
            num_warps=8,
        )
    constants = {"COLS": cols, "BLOCK": 4096, "CENTRED": op == "layer", "KEEPS": False}
    return triton_kernel(
        f"norm_{op}_{cols}",
        "norm_triton.norm_forward_kernel",
        signature={**arrays, **dict.fromkeys(("mean", "rstd"), "*fp32"), "eps": "fp32"},
        constants=constants,
        num_warps=8,
    )


def _norm_backward(op: str) -> Kernel:
    arrays = dict.fromkeys(("dy", "dtotal", "total", "weight", "dx"), "*bf16")
    sums = dict.fromkeys(("mean", "rstd", "dweight", "dbias"), "*fp32")
    return triton_kernel(
        f"norm_{op}_backward",
        "norm_triton.norm_backward_kernel",
        signature={**arrays, **sums, "rows": "i32"},
        constants={"COLS": 4096, "BLOCK": 4096, "CENTRED": op == "layer"},
        num_warps=8,
    )


def _norm_sum() -> Kernel:
    return triton_kernel(
        "norm_column_sum",
        "norm_triton.column_sum_kernel",
        signature={"partial": "*fp32", "out": "*bf16", "rows": "i32"},
        constants={"COLS": 4096, "BLOCK_ROWS": 32, "BLOCK_COLS": 32},
    )


def _chain(k: int) -> Kernel:
    return triton_kernel(
        f"pointwise_{k}",
        "pointwise_triton.chain_kernel",
        signature={"x": "*fp32", "y": "*fp32", "n": "i32"},
        constants={"STEPS": k, "SCALE": 1.25, "SHIFT": 0.5, "LIMIT": 2.0, "BLOCK": 1024},
    )


def _rope() -> Kernel:
    heads = {"HEADS": 32, "PADDED": 32, "KV_HEADS": 8, "KV_PADDED": 8, "D": 128}
    return triton_kernel(
        "rope",
        "rope_swiglu_triton.rope_kernel",
        signature=dict.fromkeys(("q", "k", "cos", "sin", "q_out", "k_out"), "*bf16"),
        constants=heads,
    )


def _swiglu() -> Kernel:
    return triton_kernel(
        "swiglu",
        "rope_swiglu_triton.swiglu_kernel",
        signature={**dict.fromkeys(("gate", "up", "out"), "*bf16"), "n": "i32"},
        constants={"BLOCK": 2048},
        num_warps=8,
    )


def _cross_entropy(vocab: int) -> Kernel:
    return triton_kernel(
        f"cross_entropy_{vocab}",
        "cross_entropy_triton.cross_entropy_kernel",
        signature={"logits": "*bf16", "target": "*i64", "loss": "*fp32", "factor": "fp32"},
        constants={"VOCAB": vocab, "WIDE": -(-vocab // 64) * 64, "BLOCK": 4096, "VECTOR": 8},
        num_warps=8,
    )


def _interval_attention(*, capped: bool) -> Kernel:
    return triton_kernel(
        "softcap_attention" if capped else "interval_attention",
        "attention_mask_triton.interval_attention_kernel",
        signature={
            "q_desc": "tensordesc<bf16[64,128]>",
            **dict.fromkeys(("k_desc", "v_desc"), "tensordesc<bf16[128,128]>"),
            "first_keys": "*i32",
            "out": "*bf16",
            "s": "i32",
            **dict.fromkeys(("scale", "cap"), "fp32"),
        },
        constants={"D": 128, "BLOCK_M": 64, "BLOCK_N": 128, "CAPPED": capped, "ON_GPU": True},
        num_warps=4,
        num_stages=1,
        **_ON_TENSOR_CORES,
    )


def _scan() -> list[Kernel]:
    sizes = {"P": 64, "N": 128, "CHUNK": 64}
    x = y = "tensordesc<bf16[1,64,64]>"
    b = c = "tensordesc<bf16[1,64,128]>"
    parts = dict.fromkeys(("states", "logs"), "*fp32")
    counts = dict.fromkeys(("heads", "chunks", "share"), "i32")
    head = {"x_desc": x, "since": "*fp32", "b_desc": b}
    return [
        triton_kernel(
            "ssm_decay",
            "ssm_scan_triton.decay_kernel",
            signature={"decay": "*fp32", "since": "*fp32", "s": "i32", "chunks": "i32"},
            constants={"HEADS": 32, "PADDED": 32, "CHUNK": 64},
        ),
        triton_kernel(
            "ssm_state",
            "ssm_scan_triton.state_kernel",
            signature={**head, **parts, **counts},
            constants={**sizes, "EACH": 2},
            num_stages=3,
            **_ON_TENSOR_CORES,
        ),
        triton_kernel(
            "ssm_scan",
            "ssm_scan_triton.scan_kernel",
            signature={**head, "c_desc": c, **parts, "y_desc": y, **counts},
            constants={**sizes, "EACH": 1},
            num_stages=2,
            **_ON_TENSOR_CORES,
        ),
    ]


def triton_kernel(name: str, where: str, *, signature: dict[str, str], **fields: Any) -> Kernel:
    """Return a Triton kernel; pointers and integers are multiples of 16, as its sizes are."""
    module, function = where.split(".")
    return Kernel(
        name=name,
        language="triton",
        module=f"perfsuite_compute.{module}",
        function=function,
        signature=signature,
        aligned=tuple(key for key, kind in signature.items() if kind[0] in "*i"),
        **fields,
    )
