"""The cases about matrices beyond gemm: shapes, groups, narrow numbers, other algorithms."""

from __future__ import annotations

import perfsuite
from perfsuite_compute import gemm_shapes, gemv_skinny, grouped_gemm


def cases() -> tuple[perfsuite.Case | perfsuite.Claim, ...]:
    """Return the cases and their claims."""
    return (*gemv_skinny.CASES, *gemm_shapes.CASES, *grouped_gemm.CASES)
