"""Runs the paged kernels in Triton's interpreter on odd sizes; prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision, not bf16: the interpreter multiplies bf16
matrices by their bits.
"""

import torch
from kernel_codes import report
from perfsuite_inference import paged_attention, paged_triton

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


if __name__ == "__main__":
    main()
