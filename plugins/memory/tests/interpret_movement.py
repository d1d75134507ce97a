"""Runs the Triton kernels of ``movement`` in its interpreter, and prints a JSON line for each.

Started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from perfsuite_memory import gather_scatter

from perfsuite.device.tensors import TensorRng


def report(name: str, got: Any, want: Any) -> None:
    """Print whether an output is what was expected, to the bit."""
    is_right = bool(torch.equal(got.double(), want.double()))
    sys.stdout.write(json.dumps({"name": name, "is_right": is_right}) + "\n")


def rows_moved() -> None:
    """Gather and add up rows."""
    for op in ("gather", "jagged_sum"):
        for rows in (4, 64, 250):
            build = gather_scatter.gather_scatter.build
            workload: Any = build(None, op=op, order="sorted", rows=max(rows, 32), impl="triton")
            inputs = workload.make_inputs(TensorRng("cpu", rows))
            inputs[-1].fill_(float("nan"))
            workload.fn(*inputs)
            report(f"{op} {rows}", inputs[-1], workload.reference(*inputs))


def main() -> None:
    """Print a line a launch."""
    rows_moved()


if __name__ == "__main__":
    main()
