"""Runs the access group's Triton kernel on sizes with tails, under TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from perfsuite_memory import tiled_matmul_triton


def main() -> None:
    """Fail by assertion where the product of matrices of whole numbers is not exact."""
    torch.manual_seed(1)
    for n in (1, 67, 128):
        a, b = torch.randint(-4, 5, (2, n, n)).float()
        out = torch.full((n, n), float("nan"))
        tiled_matmul_triton.launch(n)(a, b, out)
        assert torch.equal(out, a @ b), n


if __name__ == "__main__":
    main()
