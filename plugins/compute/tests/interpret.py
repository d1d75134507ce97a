"""Runs the Triton kernels in its interpreter on odd sizes, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision, not bf16: the interpreter multiplies bf16
matrices by their bits.
"""

from __future__ import annotations

import json
import math
import sys

import torch
from perfsuite_compute import attention_triton, gemm_triton, softmax_triton


def report(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def main() -> None:
    torch.manual_seed(1)
    for m, n, k in ((64, 128, 64), (136, 200, 72), (264, 136, 136)):
        a, b, c = normal(m, k), normal(k, n), torch.full((m, n), math.nan, dtype=torch.float16)
        gemm_triton.gemm(a, b, c)
        report(f"gemm {m} {n} {k}", c, a.double() @ b.double())
    for rows, cols, dtype in (
        (3, 64, 4),
        (9, 1001, 4),
        (9, 1001, 2),
        (3, 5, 4),
        (3, 8191, 4),
        (5, 32768, 2),
    ):
        x = normal(rows, cols, dtype={2: torch.float16, 4: torch.float32}[dtype]) + 100
        y = torch.full_like(x, math.nan)
        softmax_triton.softmax(x, y)
        report(f"softmax {rows} {cols} {dtype}", y, x.double().softmax(1))
    for s in (128, 200, 257):
        for causal in (False, True):
            q, k, v = (normal(2, 3, s, 32) for _ in range(3))
            out = torch.full_like(q, math.nan)
            attention_triton.attention(q, k, v, out, causal=causal)
            scores = q.double() @ k.double().mT / math.sqrt(32)
            if causal:
                scores.masked_fill_(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
            report(f"attention {s} {causal}", out, scores.softmax(-1) @ v.double())


if __name__ == "__main__":
    main()
