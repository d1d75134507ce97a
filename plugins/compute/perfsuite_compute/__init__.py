"""The compute pack: matrix multiplication, softmax and attention."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in

CASES = """
gemm fp8_gemm fma softmax attention attention_backward gemv_skinny gemm_shapes
grouped_gemm mixed_gemm quantize_cast sparse24 fp64_emulation strassen fft_linalg
number_formats vecadd_tile norm norm_quantize pointwise_fusion rope_swiglu cross_entropy
attention_mask attention_varlen gqa_mla conv ssm_scan gated_delta embedding ilp_unroll occupancy
divergence redundancy gemm_ladder fp8_block fp8_grouped moe_fp8 mx_quantize
video_attention packing
"""


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, CASES)
