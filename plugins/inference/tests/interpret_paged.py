"""Runs the kernels in Triton's interpreter on odd sizes; prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision or fp32, not bf16: the interpreter multiplies
bf16 matrices by their bits.
"""

from typing import Any

import torch
from kernel_codes import report
from perfsuite_inference import (
    decode_triton,
    paged_attention,
    paged_prefill,
    paged_triton,
    reference,
)
from perfsuite_inference.cache import PagedCache
from perfsuite_inference.model import SHAPES, Llama

from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

# heads, key heads, width, block, lengths of the rows
SIZES = (
    (8, 2, 32, 16, (1, 16, 77)),
    (4, 4, 64, 64, (200, 65)),
    (32, 8, 128, 16, (333,)),
    (6, 2, 16, 16, (5, 64, 63, 129)),
)


def main() -> None:
    """Print the relative error of each size."""
    torch.manual_seed(1)
    for heads, kv_heads, d, block, lengths in SIZES:
        rows, most = len(lengths), -(-max(lengths) // block) + 1
        sizes = (1 + rows * most, kv_heads, block, d)
        k, v = (torch.randn(sizes, dtype=torch.float16) for _ in "kv")
        q = torch.randn(rows, heads, d, dtype=torch.float16)
        table = (1 + torch.randperm(rows * most)).view(rows, most).int()
        got = paged_triton.attend_paged(q, k, v, table, torch.tensor(lengths)).double()
        want = paged_attention.attend_rows(q, k, v, table, torch.tensor(lengths))
        scale = want.flatten(1).norm(dim=1)[:, None, None]  # each row as important as the next
        report(f"{heads} {lengths}", got / scale, want / scale)
    fp8()
    chunks()
    decode()


def fp8() -> None:
    """Print the error of keys and values in fp8, in parts and in one."""
    device = open_device("cpu")
    for impl in ("triton", "one_block"):
        at: Any = {"dtype": "fp8", "batch": 2, "context": 255, "impl": impl}
        workload = paged_attention.paged_attention.build(device.context(1), **at)
        report(f"fp8 {impl}", check(device, workload, seed=1).known_error)


def chunks() -> None:
    """Print the error of chunks that end within a tile, of which one is nearly a whole prompt."""
    device = open_device("cpu")
    for batch, chunk, context in ((2, 65, 255), (1, 20, 100), (3, 100, 117)):
        at: Any = {"dtype": "fp32", "batch": batch, "chunk": chunk, "context": context}
        for impl in ("triton", "by_token") if chunk == 20 else ("triton",):
            workload = paged_prefill.paged_prefill.build(device.context(1), impl=impl, **at)
            report(f"chunk {impl} {context}", check(device, workload, seed=1).known_error)


def decode() -> None:
    """Print the error of two steps of one row, whose blocks lie in reverse, behind 77 tokens."""
    model, tokens = Llama(SHAPES["tiny"], "cpu"), torch.randint(0, 1024, (79,))
    cache = PagedCache(model.shape, torch.arange(5, 0, -1, dtype=torch.int32).view(1, -1), 16)
    step = decode_triton.one_row(model, cache)
    model.prefill(tokens[None, :77], cache)
    for at in (77, 78):
        tail = tokens[at : at + 1]
        want = reference.logits_after(model, tokens[:at], tail)
        report(f"decode {at}", step(tail, torch.tensor([at])), want)


if __name__ == "__main__":
    main()
