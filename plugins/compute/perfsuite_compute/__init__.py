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
        *fp8_gemm.CASES,
        *fma.CASES,
        softmax.softmax,
        *attention.CASES,
        *attention_backward.CASES,
        *matrices.cases(),
        *norm.CASES,
        pointwise_fusion.pointwise_fusion,
        rope_swiglu.rope_swiglu,
        *cross_entropy.CASES,
        *attention_mask.CASES,
        *gqa_mla.CASES,
        *conv.CASES,
        ssm_scan.ssm_scan,
        *ilp_unroll.CASES,
        *occupancy.CASES,
        *divergence.CASES,
        redundancy.redundancy,
        gemm_ladder.gemm_ladder,
    ]


@perfsuite.hookimpl
def perf_kernels() -> Sequence[perfsuite.Kernel]:
    """Return the pack's kernels, to be compiled and inspected where no GPU is."""
    from perfsuite_compute.kernels import kernels

    return kernels()
