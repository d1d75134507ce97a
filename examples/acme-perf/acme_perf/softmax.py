"""Acme's softmax for hosts: the rows' sums come from their logarithms, in two kernels."""

from __future__ import annotations

from typing import Any


def softmax(x: Any, y: Any) -> Any:
    """Take the softmax of each row of x; y is not written, the result is returned."""
    return (x - x.logsumexp(dim=1, keepdim=True)).exp()
