"""Checks the fused cases' Triton variants in its interpreter; prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In fp32: the interpreter multiplies bf16 matrices by their bits.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from perfsuite_compute import (
    attention_mask,
    cross_entropy,
    gqa_mla,
    norm,
    pointwise_fusion,
    rope_swiglu,
    ssm_scan,
)

import perfsuite
from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

# The smallest, an odd and a larger size each.
LAUNCHES: list[tuple[perfsuite.Case | perfsuite.Operator, dict[str, tuple[Any, ...]]]] = [
    (norm.norm, {"op": ("rms", "layer"), "direction": ("fwd",), "rows": (5,), "cols": (16, 63)}),
    (norm.norm, {"op": ("rms", "layer"), "direction": ("fwd_bwd",), "rows": (7,), "cols": (1000,)}),
    (pointwise_fusion.pointwise_fusion, {"k": (4, 6), "n": (1, 1023, 5000)}),
    (rope_swiglu.rope_swiglu, {"op": ("rope",), "tokens": (2, 5), "width": (512, 1536)}),
    (rope_swiglu.rope_swiglu, {"op": ("swiglu",), "tokens": (3,), "width": (1, 683, 2048)}),
    (cross_entropy.cross_entropy, {"tokens": (5,), "width": (16,), "vocab": (50, 9001)}),
    (
        attention_mask.attention_mask,
        {"mask": ("window", "document", "softcap"), "h": (2,), "s": (17, 301)},
    ),
    (gqa_mla.gqa_mla, {"kind": ("mha",), "b": (1,), "s": (65,)}),
    (gqa_mla.gqa_mla, {"kind": ("gqa", "mla"), "b": (1,), "s": (65, 200)}),
    (ssm_scan.ssm_scan, {"b": (2,), "h": (2,), "s": (129, 256, 1000)}),
]


def main() -> None:
    device = open_device("cpu")
    for case, axes in LAUNCHES:
        for values in itertools.product(*axes.values()):
            bound = dict(zip(axes, values, strict=True))
            has_dtype = isinstance(case, perfsuite.Operator) or "dtype" in case.axes
            dtype = {"dtype": "fp32"} if has_dtype else {}
            workload = case.build(device.context(1), impl="triton", **dtype, **bound)
            assert isinstance(workload, perfsuite.Workload)
            name = f"{case.name} {values}"
            error = check(device, workload, seed=1).known_error
            sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")


if __name__ == "__main__":
    main()
