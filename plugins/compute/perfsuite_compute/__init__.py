"""The compute pack: matrix multiplication, softmax and attention."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_compute import (
        attention,
        attention_backward,
        attention_mask,
        conv,
        cross_entropy,
        divergence,
        fma,
        fp8_gemm,
        gemm,
        gemm_ladder,
        gqa_mla,
        ilp_unroll,
        matrices,
        norm,
        occupancy,
        pointwise_fusion,
        redundancy,
        rope_swiglu,
        softmax,
        ssm_scan,
    )

    return [
        *gemm.CASES,
        fp8_gemm.fp8_gemm,
        fma.fma,
        softmax.softmax,
        attention.attention,
        attention_backward.attention_backward,
        *matrices.cases(),
        norm.norm,
        pointwise_fusion.pointwise_fusion,
        rope_swiglu.rope_swiglu,
        cross_entropy.cross_entropy,
        attention_mask.attention_mask,
        gqa_mla.gqa_mla,
        gqa_mla.SMALLER_CACHE,
        conv.conv,
        conv.conv3d,
        conv.TENSOR_CORES,
        ssm_scan.ssm_scan,
        ilp_unroll.ilp_unroll,
        ilp_unroll.FOUR_CHAINS,
        *occupancy.CASES,
        divergence.divergence,
        redundancy.redundancy,
        gemm_ladder.gemm_ladder,
    ]
