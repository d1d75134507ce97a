"""Runs the matrix cases' Triton kernels in its interpreter, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision, not bf16: the interpreter multiplies bf16
matrices by their bits.
"""

from __future__ import annotations

import json
import math
import sys

import torch
from perfsuite_compute import (
    grouped_gemm_triton,
    mixed_gemm,
    quantize_cast,
    quantize_cast_triton,
    skinny_triton,
    stream_k_triton,
    vecadd_tile_triton,
)

HALF = torch.float16


def report(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")


def skinny() -> None:
    for m, n, k, programs in ((1, 64, 128, 1), (3, 67, 1160, 4), (70, 130, 1288, 9)):
        launch = skinny_triton.launch(m, n, k, kind="bf16", place="cpu", programs=programs)
        for again in (1, 2):  # what the first launch leaves behind must not be seen
            x, w = torch.randn(m, k, dtype=HALF), torch.randn(n, k, dtype=HALF)
            y = torch.full((m, n), math.nan, dtype=HALF)
            launch(x, w, x, y)
            report(f"skinny {m} {n} {k} {again}", y, x.double() @ w.double().t())


def stream_k() -> None:
    # One tile; one left over; whole tiles and two left over; more parts than are read at once.
    shapes = (
        (128, 128, 64, 1),
        (264, 200, 328, 5),
        (392, 264, 1032, 5),
        (136, 72, 1288, 40),
    )
    for m, n, k, programs in shapes:
        for is_streamed in (False, True):
            launch = stream_k_triton.launch(
                m, n, k, is_streamed=is_streamed, place="cpu", programs=programs
            )
            for again in (1, 2):
                a, b = torch.randn(m, k, dtype=HALF), torch.randn(k, n, dtype=HALF)
                c = torch.full((m, n), math.nan, dtype=HALF)
                launch(a, b, c)
                name = f"stream_k {m} {n} {k} {is_streamed} {again}"
                report(name, c, a.double() @ b.double())


def grouped() -> None:
    for sizes, n, k in (((5,), 16, 64), ((3, 0, 200), 136, 72), ((130, 1, 127, 6), 264, 200)):
        launch = grouped_gemm_triton.launch(programs=3)
        x, w = torch.randn(sum(sizes), k, dtype=HALF), torch.randn(len(sizes), n, k, dtype=HALF)
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        y = torch.full((sum(sizes), n), math.nan, dtype=HALF)
        launch(x, w, ends, y)
        parts = zip(x.double().split(sizes), w.double(), strict=True)
        report(f"grouped {sizes} {n} {k}", y, torch.cat([a @ b.t() for a, b in parts]))


def mixed() -> None:
    for kind in ("int8", "int4"):
        for m, n, k, programs in ((1, 64, 128, 1), (3, 67, 1152, 4), (70, 130, 1280, 9)):
            launch = skinny_triton.launch(m, n, k, kind=kind, place="cpu", programs=programs)
            x = torch.randn(m, k, dtype=HALF)
            w, scale = mixed_gemm.quantise(torch.randn(n, k), kind)
            y = torch.full((m, n), math.nan, dtype=HALF)
            launch(x, w, scale, y)
            want = x.double() @ mixed_gemm.dequantise(w, scale, kind).t()
            report(f"mixed {kind} {m} {n} {k}", y, want)


def quantised() -> None:
    for to, kind in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
        for rows, cols in ((1, 64), (3, 1000), (5, 7168)):
            x = (3 * torch.randn(rows, cols)).bfloat16()
            codes = torch.full((rows, cols), 127, dtype=torch.uint8)
            scale = torch.full((rows,), math.nan)
            most = {"fp8": 448.0, "int8": 127.0}[to]
            inverse = quantize_cast.inverse_of(most)
            quantize_cast_triton.quantise(x, codes.view(kind), scale, largest=most, inverse=inverse)
            wanted, scales = quantize_cast.reference(x, to=to)
            report(f"quantised {to} {rows} {cols} codes", codes, wanted.double())
            report(f"quantised {to} {rows} {cols} scales", scale, scales.double())


def tutorial() -> None:
    for n in (1, 1000, 2051):
        x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), math.nan)
        vecadd_tile_triton.add(x, y, out)
        report(f"add {n}", out, x.double() + y.double())
    x, out = torch.randn(10, 256), torch.full((10,), math.nan)
    vecadd_tile_triton.rowsum(x, out)
    report("rowsum", out, x.double().sum(1))
    for n in (64, 128):
        a, b, c = torch.randn(n, n), torch.randn(n, n), torch.full((n, n), math.nan)
        vecadd_tile_triton.matmul(a, b, c)
        report(f"matmul {n}", c, a.double() @ b.double())


def main() -> None:
    torch.manual_seed(1)
    skinny()
    stream_k()
    grouped()
    mixed()
    quantised()
    tutorial()


if __name__ == "__main__":
    main()
