"""Runs the matrix cases' Triton kernels in its interpreter, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision, not bf16: the interpreter multiplies bf16
matrices by their bits.
"""

from __future__ import annotations

import json
import math
import sys

import torch
from perfsuite_compute import grouped_gemm_triton, skinny_triton, stream_k_triton

HALF = torch.float16


def report(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")


def skinny() -> None:
    for m, n, k, programs in ((1, 64, 128, 1), (3, 67, 1160, 4), (70, 130, 1288, 9)):
        launch = skinny_triton.launch(m, n, k, kind="bf16", place="cpu", programs=programs)
        for again in (1, 2):  # what the first launch leaves behind must not be seen
            x, w = torch.randn(m, k, dtype=HALF), torch.randn(n, k, dtype=HALF)
            y = torch.full((m, n), math.nan, dtype=HALF)
            launch(x, w, x, y)
            report(f"skinny {m} {n} {k} {again}", y, x.double() @ w.double().t())


def stream_k() -> None:
    for m, n, k, programs in ((128, 128, 64, 1), (136, 200, 328, 3), (264, 136, 1032, 7)):
        for is_streamed in (False, True):
            launch = stream_k_triton.launch(
                m, n, k, is_streamed=is_streamed, place="cpu", programs=programs
            )
            for again in (1, 2):
                a, b = torch.randn(m, k, dtype=HALF), torch.randn(k, n, dtype=HALF)
                c = torch.full((m, n), math.nan, dtype=HALF)
                launch(a, b, c)
                name = f"stream_k {m} {n} {k} {is_streamed} {again}"
                report(name, c, a.double() @ b.double())


def grouped() -> None:
    for sizes, n, k in (((5,), 16, 64), ((3, 0, 200), 136, 72), ((130, 1, 127, 6), 264, 200)):
        launch = grouped_gemm_triton.launch(programs=3)
        x, w = torch.randn(sum(sizes), k, dtype=HALF), torch.randn(len(sizes), n, k, dtype=HALF)
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        y = torch.full((sum(sizes), n), math.nan, dtype=HALF)
        launch(x, w, ends, y)
        parts = zip(x.double().split(sizes), w.double(), strict=True)
        report(f"grouped {sizes} {n} {k}", y, torch.cat([a @ b.t() for a, b in parts]))


def main() -> None:
    torch.manual_seed(1)
    skinny()
    stream_k()
    grouped()


if __name__ == "__main__":
    main()
