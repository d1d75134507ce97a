"""The float64 matrix product that the matrix cases are checked against."""

from __future__ import annotations

from typing import Any


def matmul(a: Any, b: Any, *, rows: int = 2048) -> Any:
    """Return a @ b in float64, ``rows`` of a at a time so that only b is held twice."""
    import torch

    out = torch.empty(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    wide = b.double()
    for start in range(0, a.shape[0], rows):
        torch.mm(a[start : start + rows].double(), wide, out=out[start : start + rows])
    return out


def matmul_bytes(m: int, n: int, k: int, *, rows: int = 2048) -> int:
    """Return the bytes that ``matmul`` allocates at its peak."""
    return 8 * (k * n + m * n + min(m, rows) * k)
