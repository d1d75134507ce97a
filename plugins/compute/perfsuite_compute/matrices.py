"""The cases about matrices beyond gemm: shapes, groups, narrow numbers, other algorithms."""

from __future__ import annotations

import perfsuite
from perfsuite_compute import (
    fp64_emulation,
    gemm_shapes,
    gemv_skinny,
    grouped_gemm,
    mixed_gemm,
    quantize_cast,
    sparse24,
    strassen,
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
        *fp64_emulation.CASES,
        *strassen.CASES,
    )
