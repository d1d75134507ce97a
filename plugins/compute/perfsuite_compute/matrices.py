"""The cases about matrices beyond gemm: shapes, groups, narrow numbers, other algorithms."""

from __future__ import annotations

import perfsuite
from perfsuite_compute import (
    fft_linalg,
    fp64_emulation,
    gemm_shapes,
    gemv_skinny,
    grouped_gemm,
    mixed_gemm,
    number_formats,
    quantize_cast,
    sparse24,
    strassen,
    vecadd_tile,
)


def cases() -> tuple[perfsuite.Case | perfsuite.Operator | perfsuite.Claim, ...]:
    """Return the cases and their claims."""
    return (
        gemv_skinny.gemv_skinny,
        *gemm_shapes.CASES,
        grouped_gemm.grouped_gemm,
        mixed_gemm.mixed_gemm,
        quantize_cast.quantize_cast,
        sparse24.sparse24,
        fp64_emulation.fp64_emulation,
        strassen.strassen,
        fft_linalg.fft_linalg,
        number_formats.number_formats,
        vecadd_tile.vecadd_tile,
    )
