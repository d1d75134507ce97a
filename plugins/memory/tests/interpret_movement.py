"""Runs the Triton kernels of ``movement`` in its interpreter, and prints a JSON line for each.

Started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from perfsuite_memory import gather_scatter, scan_sort_topk, scan_sort_topk_triton

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


def scans_and_tops() -> None:
    """Scan and find the largest, over one tile, a tail, and more blocks than are chosen."""
    # Few elements a block, so that there are more blocks than are chosen or looked back at, and
    # little to sort: the interpreter sorts element by element.
    scan_sort_topk.K = 4
    sizes = {"SCAN_BLOCK": 16, "MAXIMUM_BLOCK": 32, "TOP_BLOCK": 16, "RANK_BLOCK": 32}
    for name, size in sizes.items():
        setattr(scan_sort_topk_triton, name, size)
    for op in ("scan", "topk"):
        for n in (8, 96, 995):
            ctx = Context()
            workload: Any = scan_sort_topk.scan_sort_topk.build(ctx, op=op, n=n, impl="triton")
            inputs = workload.make_inputs(TensorRng("cpu", n))
            for _ in range(2):
                inputs[-1].fill_(-1)
                workload.fn(*inputs)
                report(f"{op} {n}", inputs[-1], workload.reference(*inputs))


class Context:
    """Where builders put their scratch."""

    place = "cpu"


def main() -> None:
    """Print a line a launch."""
    rows_moved()
    scans_and_tops()


if __name__ == "__main__":
    main()
