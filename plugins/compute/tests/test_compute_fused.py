"""The fused cases on a CPU: right against their references, their mistakes refused, their work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from perfsuite_compute import (
    attention,
    attention_backward,
    attention_mask,
    conv,
    cross_entropy,
    fp8_gemm,
    gemm_shapes,
    gqa_mla,
    norm,
    pointwise_fusion,
    rope_swiglu,
    ssm_scan,
)

import perfsuite

# Axes of launches small enough for a CPU; in bf16 too, to see that its tolerance holds.
BOTH = ("bf16", "fp32")
SMALL: list[tuple[perfsuite.Case | perfsuite.Operator, dict[str, tuple[Any, ...]]]] = [
    *(
        (norm.norm, {
            "dtype": (dtype,), "op": ("rms", "layer"), "direction": ("fwd", "fwd_bwd"),
            "rows": (64,), "cols": (257,), "impl": impls,
        })
        for dtype, impls in (("fp32", ("eager", "torch")), ("bf16", ("eager",)))
    ),
    (pointwise_fusion.pointwise_fusion, {"k": (4, 16), "n": (4099,), "impl": ("eager",)}),
    (rope_swiglu.rope_swiglu, {
        "dtype": BOTH, "op": ("rope", "swiglu"), "tokens": (67,), "width": (1024,),
        "impl": ("eager",),
    }),
    (cross_entropy.cross_entropy, {
        "dtype": BOTH, "tokens": (67,), "width": (128,), "vocab": (1001,),
        "impl": ("eager", "chunked"),
    }),
    (attention.attention, {
        "dtype": BOTH, "b": (1,), "h": (2,), "s": (257,), "d": (64,), "causal": (False, True),
        "impl": ("math", "sdpa_math", "dispatched"),
    }),
    (attention_backward.attention_backward, {
        "dtype": ("fp32",), "b": (2,), "h": (3,), "s": (65,), "d": (16,), "impl": ("math",),
    }),
    (attention_mask.attention_mask, {
        "dtype": BOTH, "mask": ("window", "document", "softcap"), "h": (2,), "s": (203,),
        "impl": ("masked",),
    }),
    (conv.conv, {
        "dtype": BOTH, "layer": ("stem", "tiny"), "n": (1,), "impl": ("nchw", "channels_last"),
    }),
    (conv.conv3d, {
        "channels": (3,), "frames": (5,), "size": (9,), "n": (2,),
        "impl": ("ncdhw", "channels_last"),
    }),
    (gemm_shapes.bmm, {"b": (3,), "m": (67,), "n": (65,), "k": (129,), "impl": ("torch", "loop")}),
    (ssm_scan.ssm_scan, {
        "dtype": BOTH, "b": (2,), "h": (3,), "s": (300,), "impl": ("loop", "chunked"),
    }),
    (fp8_gemm.fp8_gemm, {
        "m": (256,), "n": (128,), "k": (512,), "impl": ("bf16", "fp8_tensorwise", "fp8_rowwise"),
    }),
    *(
        (gqa_mla.gqa_mla, {"dtype": BOTH, "kind": (kind,), "b": (2,), "s": (99,), "impl": impls})
        for kind, impls in (("mha", ("sdpa",)), ("gqa", ("torch", "sdpa")), ("mla", ("torch",)))
    ),
]  # fmt: skip


def _small() -> list[Any]:
    return [
        pytest.param(case, dict(zip(axes, values, strict=True)), id=f"{case.name}-{values}")
        for case, axes in SMALL
        for values in itertools.product(*axes.values())
    ]


@pytest.mark.parametrize(("case", "axes"), _small())
def test_launch_is_right_on_the_cpu_and_its_mistake_refused(
    case: perfsuite.Case | perfsuite.Operator, axes: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    device = open_device("cpu")
    workload = case.build(device.context(3), **axes)
    assert isinstance(workload, perfsuite.Workload)
    assert check(device, workload, seed=3).known_error is not None
