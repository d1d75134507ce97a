"""Runs the Triton kernels in its interpreter, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. The interpreter has no `tl.dot_scaled`: one is added here that says
what Triton's documentation does, so that the kernel's addresses are tried, and the quantisers'.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from kernel_codes import report
from perfsuite_blackwell import block_scaled_triton, gemm_triton
from perfsuite_blackwell.block_scaled_gemm import look_up
from perfsuite_blackwell.formats import FORMATS, values_of
from perfsuite_blackwell.quantise import quantise, tile_scales, untile_scales
from triton.runtime.interpreter import TensorHandle

FORM = FORMATS["nvfp4"]  # of the kernel that runs


def values(codes: Any) -> Any:
    """Return what codes stand for, with k in columns: two e2m1 in a byte, the first one low."""
    codes = np.asarray(codes).view(np.uint8)
    if FORM.bits == 4:
        codes = np.stack((codes & 15, codes >> 4), axis=2).reshape(codes.shape[0], -1)
    return np.array(values_of(FORM.element))[codes]


def dot_scaled(a: Any, a_scale: Any, _: str, b: Any, b_scale: Any, __: str, sums: Any) -> Any:
    table = np.array(values_of(FORM.scale))
    sides = []
    for codes, scale in ((a.handle.data, a_scale), (b.handle.data.T, b_scale)):
        steps = table[np.asarray(scale.handle.data).view(np.uint8)]
        sides.append(values(np.ascontiguousarray(codes)) * np.repeat(steps, FORM.block, axis=1))
    made = sums.handle.data + (sides[0] @ sides[1].T).astype(np.float32)
    return tl.core.tensor(TensorHandle(made, sums.handle.dtype), sums.type)


def main() -> None:
    global FORM  # noqa: PLW0603 - what the interpreter hands over is bytes
    tl.dot_scaled = dot_scaled
    torch.manual_seed(1)
    # The interpreter multiplies bf16 matrices by their bits.
    a, b = torch.randn(256, 192).half(), torch.randn(192, 384).half()
    c = torch.full((256, 384), torch.nan).half()
    gemm_triton.gemm(a, b, c)
    report("gemm", c, a.double() @ b.double())
    for form in FORMATS.values():
        FORM = form
        left, right = (
            quantise(torch.randn(rows, 256) * 4 * torch.rand(rows, 1), form) for rows in (256, 384)
        )
        operands = [each for x in (left, right) for each in (x.codes, tile_scales(x.scales))]
        factor = left.factor * right.factor
        out = torch.full((256, 384), torch.nan).half()
        want = look_up(operands[0], operands[1], form) @ look_up(operands[2], operands[3], form).T
        launch = block_scaled_triton.launcher(form)
        launch(*operands, factor, out)
        report(form.name, out, want * factor)
        operands[1] = untile_scales(operands[1]).reshape(operands[1].shape)
        launch(*operands, factor, out)
        assert (out - want * factor).norm() > 0.05 * (want * factor).norm(), form.name


if __name__ == "__main__":
    main()
