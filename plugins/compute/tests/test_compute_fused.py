"""The fused cases on a CPU: right against their references, their mistakes refused, their work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from perfsuite_compute import (
    attention_mask,
    conv,
    cross_entropy,
    gqa_mla,
    norm,
    pointwise_fusion,
    rope_swiglu,
    ssm_scan,
)

import perfsuite

CASES = (
    norm.norm,
    pointwise_fusion.pointwise_fusion,
    rope_swiglu.rope_swiglu,
    cross_entropy.cross_entropy,
    attention_mask.attention_mask,
    gqa_mla.gqa_mla,
    conv.conv,
    ssm_scan.ssm_scan,
)
# Axes of launches small enough for a CPU; in bf16 too, to see that its tolerance holds.
SMALL: list[tuple[perfsuite.Case | perfsuite.Operator, dict[str, tuple[Any, ...]]]] = [
    (
        norm.norm,
        {
            "dtype": ("fp32",),
            "op": ("rms", "layer"),
            "direction": ("fwd", "fwd_bwd"),
            "rows": (64,),
            "cols": (257,),
            "impl": ("eager", "torch"),
        },
    ),
    (
        norm.norm,
        {
            "dtype": ("bf16",),
            "op": ("rms", "layer"),
            "direction": ("fwd", "fwd_bwd"),
            "rows": (64,),
            "cols": (257,),
            "impl": ("eager",),
        },
    ),
    (pointwise_fusion.pointwise_fusion, {"k": (4, 16), "n": (4099,), "impl": ("eager",)}),
    (
        rope_swiglu.rope_swiglu,
        {
            "dtype": ("bf16", "fp32"),
            "op": ("rope", "swiglu"),
            "tokens": (67,),
            "width": (1024,),
            "impl": ("eager",),
        },
    ),
    (
        cross_entropy.cross_entropy,
        {
            "dtype": ("bf16", "fp32"),
            "tokens": (67,),
            "width": (128,),
            "vocab": (1001,),
            "impl": ("eager", "chunked"),
        },
    ),
    (
        attention_mask.attention_mask,
        {
            "dtype": ("bf16", "fp32"),
            "mask": ("window", "document", "softcap"),
            "h": (2,),
            "s": (203,),
            "impl": ("masked",),
        },
    ),
    (
        conv.conv,
        {
            "dtype": ("fp32", "bf16"),
            "layer": ("stem", "tiny"),
            "n": (1,),
            "impl": ("nchw", "channels_last"),
        },
    ),
    (
        ssm_scan.ssm_scan,
        {"dtype": ("bf16", "fp32"), "b": (2,), "h": (3,), "s": (300,), "impl": ("loop", "chunked")},
    ),
    *(
        (
            gqa_mla.gqa_mla,
            {"dtype": ("bf16", "fp32"), "kind": (kind,), "b": (2,), "s": (99,), "impl": impls},
        )
        for kind, impls in (("mha", ("sdpa",)), ("gqa", ("torch", "sdpa")), ("mla", ("torch",)))
    ),
]


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


def test_pack_is_sound() -> None:
    import perfsuite_compute

    from perfsuite.testing import check_pack

    assert check_pack(perfsuite_compute, device="") == ()


@pytest.mark.parametrize(
    ("case", "axes"),
    [
        (cross_entropy.cross_entropy, {"tokens": 8, "width": 16, "vocab": 32, "impl": "eager"}),
        (gqa_mla.gqa_mla, {"kind": "mla", "b": 2, "s": 9, "impl": "torch"}),
        (conv.conv, {"layer": "stem", "n": 1, "impl": "nchw"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_work_counts_the_operations_that_torch_counts(
    case: perfsuite.Case, axes: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from perfsuite.devices.protocol import open_device

    device = open_device("cpu")
    workload = case.build(device.context(1), dtype="fp32", **axes)
    assert isinstance(workload, perfsuite.Workload)
    assert case.work is not None
    with FlopCounterMode(display=False) as counter:
        workload.fn(*workload.make_inputs(device.rng(1)))
    assert counter.get_total_flops() == case.work(dtype="fp32", **axes).flops


@pytest.mark.parametrize("mask", ["window", "document", "softcap"])
@pytest.mark.parametrize("s", [8, 100, 203])
def test_pairs_are_those_of_the_mask(mask: str, s: int) -> None:
    pytest.importorskip("torch")
    first = attention_mask.first_keys(mask, s, "cpu")
    assert attention_mask.pairs(mask, s) == sum(i + 1 - int(first[i]) for i in range(s))


def test_caches_have_the_numbers_of_a_token_that_models_publish() -> None:
    assert gqa_mla.gqa_mla.work is not None
    found = {}
    for kind in gqa_mla.MODELS:
        axes = {"dtype": "bf16", "kind": kind, "b": 1, "impl": "triton"}
        works = [gqa_mla.gqa_mla.work(s=s, **axes) for s in (100, 101)]
        found[kind] = (works[1].read_bytes - works[0].read_bytes) / 2
    assert found == {"mha": 8192, "gqa": 2048, "mla": 576}


def test_norm_counts_what_must_move() -> None:
    assert norm.norm.work is not None
    axes = {"dtype": "bf16", "op": "rms", "rows": 10, "cols": 100, "impl": "eager"}
    assert norm.norm.work(direction="fwd", **axes).bytes == 4 * 2000
    assert norm.norm.work(direction="fwd_bwd", **axes).bytes == 8 * 2000
