"""Runs the pack's Triton kernels on sizes with tails, under TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Callable

import torch
from perfsuite_memory import coalescing_triton, stream_triton, transpose_triton
from perfsuite_memory.stream import INPUTS, REDUCTIONS, SCALAR, stream

from perfsuite.devices.tensors import TensorRng

PROGRAMS = 2


def main() -> None:
    """Fail by assertion at the first kernel that leaves or spoils an element."""
    rng = TensorRng("cpu", 1)
    for op in INPUTS:
        for n in (1, 4093, 3 * stream_triton.BLOCK + 5):
            workload = stream.build(None, op=op, n=n, impl="torch")
            inputs = workload.make_inputs(rng)
            inputs[-1].fill_(float("nan"))
            _launch(op, n)(*inputs)
            want = workload.reference(*inputs).float()
            torch.testing.assert_close(inputs[-1], want, msg=f"{op} {n}")
    for n, stride in ((1, 1), (1025, 3), (2047, 8)):
        records, field = torch.randn(n, stride), torch.full((n,), float("nan"))
        coalescing_triton.launch(n, stride)(records, field)
        assert torch.equal(field, records[:, 0]), (n, stride)
    for rows, columns in ((1, 1), (64, 64), (65, 131), (130, 63)):
        x, out = torch.randn(rows, columns), torch.full((columns, rows), float("nan"))
        transpose_triton.launch(rows, columns)(x, out)
        assert torch.equal(out, x.t()), (rows, columns)


def _launch(op: str, n: int) -> Callable[..., None]:
    if op in REDUCTIONS:
        return stream_triton.reduce_launch(op, n, partials=torch.empty(PROGRAMS))
    return stream_triton.map_launch(op, n, scalar=SCALAR)


if __name__ == "__main__":
    main()
