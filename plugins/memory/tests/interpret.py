"""Runs the pack's Triton kernels on sizes with tails, under TRITON_INTERPRET=1."""

from typing import Any

import torch
from perfsuite_memory import (
    coalescing,
    gather_scatter,
    scan_sort_topk,
    scan_sort_topk_triton,
    stream,
    tiled_matmul,
    topk_triton,
    transpose,
    transpose_triton,
)

from perfsuite import Operator
from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

VARIANTS: list[tuple[Operator, dict[str, Any]]] = [
    *((stream.stream, {"op": op, "n": n}) for op in stream.INPUTS for n in (1, 4093, 12293)),
    *((coalescing.coalescing, {"n": n, "stride": s}) for n, s in ((1, 1), (1025, 3), (2047, 8))),
    *((transpose.transpose, {"n": n}) for n in (64, 131)),
    *((tiled_matmul.tiled_matmul, {"n": n}) for n in (67, 128)),
    *(
        (gather_scatter.gather_scatter, {"op": op, "order": order, "rows": rows, "impl": impl})
        for op, order, impl in (
            ("gather", "sorted", "triton"),
            ("jagged_sum", "sorted", "triton"),
            ("index_add", "random", "lists"),
            ("index_add", "random", "atomics"),
        )
        for rows in (32, 64, 250)
    ),
    # Over one tile, a tail, and more blocks than are chosen.
    *(
        (scan_sort_topk.scan_sort_topk, {"op": o, "n": n})
        for o in ("scan", "topk")
        for n in (8, 96, 995)
    ),
]


def look_back_over_windows() -> None:
    """Scan the last tile of 20 where all between it and the first have published a sum alone."""
    n, tiles, block = 315, 20, 16
    x, out, state = torch.ones(n).int(), torch.zeros(n).int(), torch.zeros(1 + tiles).long()
    state[0] = tiles - 1
    state[1 : tiles + 1] = (block << 32) | 4 | 1
    state[1] += 1
    kernel: Any = scan_sort_topk_triton.scan_kernel
    kernel[(1,)](x, out, state, n, tiles, BLOCK=block, WINDOW=8)
    assert torch.equal(out[304:], torch.arange(305, n + 1).int())


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
        launch = topk_triton.top(n, 4, lambda count: torch.zeros(count, dtype=torch.int32))
        for _ in range(2):
            launch(x, out)
            assert torch.equal(out, x.topk(4).values), name


def main() -> None:
    """Fail at the first kernel that leaves or spoils an element."""
    # Few elements a block, so that there are more blocks than are chosen or looked back at.
    scan_sort_topk.K = 4
    scan_sort_topk_triton.SCAN_BLOCK, scan_sort_topk_triton.WINDOW = 16, 8
    for name, size in {"MAXIMUM_BLOCK": 32, "RANK_BLOCK": 32, "MOST": 8, "FEW": 8}.items():
        setattr(topk_triton, name, size)
    device = open_device("cpu")
    for declared, axes in VARIANTS:
        check(device, declared.build(device.context(3), **{"impl": "triton", **axes}), seed=3)
    for rows, columns in ((1, 1), (65, 131), (130, 63)):
        x, out = torch.randn(rows, columns), torch.full((columns, rows), torch.nan)
        transpose_triton.launch(rows, columns)(x, out)
        assert torch.equal(out, x.t()), (rows, columns)
    look_back_over_windows()
    tops_of_what_is_not_random()


if __name__ == "__main__":
    main()
