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


def cases() -> tuple[perfsuite.Case | perfsuite.Claim, ...]:
    """Return the cases and their claims."""
    return (
        *gemv_skinny.CASES,
        *gemm_shapes.CASES,
        *grouped_gemm.CASES,
        *mixed_gemm.CASES,
        *quantize_cast.CASES,
        *sparse24.CASES,
        fp64_emulation.fp64_emulation,
        *strassen.CASES,
        fft_linalg.fft_linalg,
        *number_formats.CASES,
        *vecadd_tile.CASES,
    )
