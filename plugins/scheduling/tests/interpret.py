"""Runs the Triton kernels in its interpreter on odd sizes, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1.
"""

import math

import torch
from kernel_codes import report
from perfsuite_scheduling import kernel_fusion_triton, launch_latency_triton, pdl_triton, smoothing


def main() -> None:
    torch.manual_seed(1)
    source, target = torch.tensor([41], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch_latency_triton.add_one(source, target)
    report("add_one", target, torch.tensor([42.0], dtype=torch.float64))
    for n in (1, 1000, 2049):
        x = torch.randn(n)
        y = torch.full_like(x, math.nan)
        kernel_fusion_triton.gelu(x, y)
        want = torch.nn.functional.gelu(x.double(), approximate="tanh")
        report(f"gelu {n}", y, want)
    for n, steps in ((256, 1), (1000, 3), (1024, 4)):
        x = torch.randn(n)
        y, scratch = torch.full_like(x, math.nan), torch.full_like(x, math.nan)
        pdl_triton.chain(x, y, scratch, steps=steps, early=False)
        report(f"chain {n} {steps}", y, smoothing.reference(x, y, steps=steps))


if __name__ == "__main__":
    main()
