"""Runs Triton's kernels once on a GPU at sizes that are no multiple of a tile.

    PYTHONPATH=.:tests python tests/odd_kernels.py

Each is compared with its reference as in any run. A night has such sizes of most of them, and the
packs' tests have the others in Triton's interpreter, which knows nothing of a GPU's rounding.
"""

from __future__ import annotations

import sys
from typing import Any

import sanitize_kernels

# Triton's kernels at sizes that are no multiple of a tile, where a night has none of them.
ODD: dict[str, dict[str, list[Any]]] = {
    "memory.stream": {"op": ["copy", "triad", "dot", "init"], "n": [5, 4099], "impl": ["triton"]},
    "memory.coalescing": {"n": [4099], "stride": [1, 8], "impl": ["triton"]},
    "memory.transpose": {"n": [33, 129], "impl": ["triton"]},
    "memory.tiled_matmul": {"n": [97, 200], "impl": ["triton"]},
    "memory.reduction": {"n": [7, 4099], "impl": ["triton"]},
    "memory.gather_scatter": {
        "op": ["gather", "jagged_sum"],
        "order": ["random"],
        "rows": [67, 4099],
        "impl": ["triton"],
    },
    "memory.gather_scatter ": {
        "op": ["index_add"],
        "order": ["random", "sorted"],
        "rows": [67, 4099],
        "impl": ["lists", "atomics"],
    },
    "memory.scan_sort_topk": {"op": ["scan", "topk"], "n": [4099, 70001], "impl": ["triton"]},
    "compute.gemm": {"dtype": ["bf16"], "m": [65], "n": [72], "k": [136], "impl": ["triton"]},
    "compute.softmax": {
        "dtype": ["fp32", "bf16"],
        "rows": [67],
        "cols": [1000, 8191],
        "impl": ["triton"],
    },
    "compute.attention": {
        "dtype": ["bf16"],
        "b": [1],
        "h": [3],
        "s": [77, 519],
        "d": [128],
        "causal": [False, True],
        "impl": ["triton"],
    },
    "compute.gemv_skinny": {"m": [1, 5], "n": [67], "k": [2048], "impl": ["triton"]},
    "compute.gemm_shapes": {
        "m": [161],
        "n": [136, 1408],
        "k": [520, 8192],
        "impl": ["tiles", "stream_k"],
    },
    "compute.grouped_gemm": {
        "rows": [333],
        "experts": [7],
        "k": [256],
        "skew": ["zipf"],
        "impl": ["triton"],
    },
    "compute.mixed_gemm": {"m": [5, 33], "n": [66], "k": [1152], "impl": ["int8", "int4"]},
    "compute.quantize_cast": {
        "to": ["fp8", "int8"],
        "rows": [67],
        "cols": [1000],
        "impl": ["triton"],
    },
    "compute.vecadd_tile": {"op": ["add", "rowsum"], "n": [67], "impl": ["triton"]},
    "compute.norm": {
        "dtype": ["bf16", "fp32"],
        "op": ["rms", "layer"],
        "direction": ["fwd", "fwd_bwd"],
        "rows": [67],
        "cols": [1000, 1001],
        "impl": ["triton"],
    },
    "compute.pointwise_fusion": {"k": [3, 16], "n": [4099], "impl": ["triton"]},
    "compute.rope_swiglu": {
        "dtype": ["bf16"],
        "op": ["rope", "swiglu"],
        "tokens": [67],
        "width": [1024],
        "impl": ["triton"],
    },
    "compute.cross_entropy": {
        "dtype": ["bf16"],
        "tokens": [67],
        "width": [72],
        "vocab": [1001],
        "impl": ["triton"],
    },
    "compute.attention_mask": {
        "dtype": ["bf16"],
        "mask": ["window", "document", "softcap"],
        "h": [3],
        "s": [519],
        "impl": ["triton"],
    },
    "compute.gqa_mla": {
        "dtype": ["bf16"],
        "kind": ["gqa", "mla"],
        "b": [3],
        "s": [301],
        "impl": ["triton"],
    },
    "compute.ssm_scan": {"dtype": ["bf16"], "b": [1], "h": [2], "s": [333], "impl": ["triton"]},
    "scheduling.kernel_fusion": {"n": [4099], "impl": ["triton"]},
    "scheduling.pdl": {"steps": [3], "impl": ["plain", "early"]},
}


if __name__ == "__main__":
    sys.exit(min(sanitize_kernels.main(ODD), 1))
