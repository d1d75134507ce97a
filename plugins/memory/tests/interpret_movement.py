"""Runs the Triton kernels of ``movement`` in its interpreter, and prints a JSON line for each.

Started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from perfsuite_memory import (
    gather_scatter,
    scan_sort_topk,
    scan_sort_topk_triton,
    topk_triton,
)

from perfsuite.devices.tensors import TensorRng


def report(name: str, got: Any, want: Any) -> None:
    """Print whether an output is what was expected, to the bit."""
    is_right = bool(torch.equal(got.double(), want.double()))
    sys.stdout.write(json.dumps({"name": name, "is_right": is_right}) + "\n")


def rows_moved() -> None:
    """Gather and add up rows."""
    triton = {"op": "gather", "order": "sorted", "impl": "triton"}
    variants = [triton, {**triton, "op": "jagged_sum"}]
    added = {**triton, "op": "index_add", "order": "random"}
    variants += [{**added, "impl": "lists"}, {**added, "impl": "atomics"}]
    for axes in variants:
        for rows in (32, 64, 250):
            build = gather_scatter.gather_scatter.build
            workload: Any = build(Context(), rows=rows, **axes)
            # Twice: what a launch leaves behind is not in the next one's way.
            for seed in range(2):
                inputs = workload.make_inputs(TensorRng("cpu", rows + seed))
                inputs[-1].fill_(float("nan"))
                workload.fn(*inputs)
                report(f"{axes} {rows}", inputs[-1], workload.reference(*inputs))


def scans_and_tops() -> None:
    """Scan and find the largest, over one tile, a tail, and more blocks than are chosen."""
    # Few elements a block, so that there are more blocks than are chosen or looked back at.
    scan_sort_topk.K = 4
    scan_sort_topk_triton.SCAN_BLOCK, scan_sort_topk_triton.WINDOW = 16, 8
    sizes = {"MAXIMUM_BLOCK": 32, "RANK_BLOCK": 32, "MOST": 8, "FEW": 8}
    for name, size in sizes.items():
        setattr(topk_triton, name, size)
    for op in ("scan", "topk"):
        for n in (8, 96, 995):
            ctx = Context()
            workload: Any = scan_sort_topk.scan_sort_topk.build(ctx, op=op, n=n, impl="triton")
            inputs = workload.make_inputs(TensorRng("cpu", n))
            for _ in range(3):
                inputs[-1].fill_(-1)
                workload.fn(*inputs)
                report(f"{op} {n}", inputs[-1], workload.reference(*inputs))


def look_back_over_windows() -> None:
    """Scan the last tile of 20 where all between it and the first have published a sum alone."""
    n, tiles, block = 315, 20, 16
    x, out, state = torch.ones(n).int(), torch.zeros(n).int(), torch.zeros(1 + tiles).long()
    state[0] = tiles - 1
    state[1 : tiles + 1] = (block << 32) | 4 | 1
    state[1] += 1
    kernel: Any = scan_sort_topk_triton.scan_kernel
    kernel[(1,)](x, out, state, n, tiles, BLOCK=block, WINDOW=8)
    report("scan of the last tile", out[304:], torch.arange(305, n + 1))


def tops_of_what_is_not_random() -> None:
    """Find the largest where many are equal, or lie in few blocks, or below zero."""
    n = 901
    rising = torch.arange(n).float() - 450
    for name, x in {
        "rising": rising,
        "falling": rising.flip(0).contiguous(),
        "equal": torch.full((n,), -2.5),
        "few values": (rising % 3).contiguous(),
        "two above": torch.where(rising.abs() < 1, 7.0, -1.0),
        "infinite": torch.where(rising < 448, -torch.inf, rising),
        "a value a block": (rising // 32).contiguous(),
    }.items():
        out = torch.full((4,), torch.nan)
        launch = topk_triton.top(
            n, 4, lambda count, dtype: torch.zeros(count, dtype=getattr(torch, dtype))
        )
        for _ in range(2):
            launch(x, out)
            report(f"topk {name}", out, x.topk(4).values)


class Context:
    """Where builders put their scratch."""

    place = "cpu"


def main() -> None:
    """Print a line a launch."""
    rows_moved()
    scans_and_tops()
    look_back_over_windows()
    tops_of_what_is_not_random()


if __name__ == "__main__":
    main()
