"""Runs the matrix cases' Triton kernels in its interpreter, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision, not bf16: the interpreter multiplies bf16
matrices by their bits.
"""

from __future__ import annotations

import json
import math
import sys

import torch
from perfsuite_compute import skinny_triton

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


def main() -> None:
    torch.manual_seed(1)
    skinny()


if __name__ == "__main__":
    main()
