"""Runs the Triton kernels in its interpreter on odd sizes, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1. In half precision or fp32: the interpreter multiplies bf16 matrices
by their bits.
"""

import itertools
import math
from typing import Any

import torch
from kernel_codes import report
from perfsuite_compute import (
    attention,
    attention_mask,
    attention_varlen,
    cross_entropy,
    embedding,
    fp8_block,
    fp8_block_triton,
    fp8_grouped,
    gated_delta,
    gemm_triton,
    gqa_mla,
    grouped_gemm_triton,
    moe_fp8,
    mx_quantize,
    norm,
    norm_quantize,
    norm_quantize_triton,
    packing,
    pointwise_fusion,
    quantize_cast,
    quantize_cast_triton,
    rope_swiglu,
    skinny_triton,
    softmax_triton,
    ssm_scan,
    stream_k_triton,
    vecadd_tile,
    video_attention,
    video_attention_triton,
)

from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

DELTA = {"model": ("qwen3-next-80b-tp4",), "state": ("fp32",), "b": (1,)}
# Of the fused cases the smallest, an odd and a larger size each.
FUSED: list[tuple[Any, dict[str, tuple[Any, ...]]]] = [
    (norm.norm, {"op": ("rms", "layer"), "direction": ("fwd",), "rows": (5,), "cols": (16, 63)}),
    (norm.norm, {"op": ("rms", "layer"), "direction": ("fwd_bwd",), "rows": (7,), "cols": (1000,)}),
    (pointwise_fusion.pointwise_fusion, {"k": (4, 6), "n": (1, 1023, 5000)}),
    (rope_swiglu.rope_swiglu, {"op": ("rope",), "tokens": (2, 5), "width": (512, 1536)}),
    (rope_swiglu.rope_swiglu, {"op": ("swiglu",), "tokens": (3,), "width": (1, 683, 2048)}),
    (cross_entropy.cross_entropy, {"tokens": (5,), "width": (16,), "vocab": (50, 9001)}),
    (
        attention_mask.attention_mask,
        {"mask": ("window", "document", "softcap"), "h": (2,), "s": (17, 301)},
    ),
    (packing.packing, {"model": ("tiny",), "op": ("unpad", "pad", "linear")}),
    (video_attention.video_attention, {"model": ("tiny",), "window": ("local",)}),
    (attention_varlen.attention_varlen, {"prompts": ("small", "small_chunked")}),
    (gqa_mla.gqa_mla, {"kind": ("mha",), "b": (1,), "s": (65,)}),
    (gqa_mla.gqa_mla, {"kind": ("gqa", "mla"), "b": (1,), "s": (65, 200)}),
    (ssm_scan.ssm_scan, {"b": (2,), "h": (2,), "s": (129, 256, 1000)}),
    (gated_delta.gated_delta, {**DELTA, "phase": ("prefill",), "s": (65, 128)}),
    (gated_delta.gated_delta, {**DELTA, "phase": ("decode",), "s": (1,)}),
    (
        embedding.embedding,
        {"op": ("fwd", "bwd"), "vocab": (100,), "width": (136,), "tokens": (70,)},
    ),
    (vecadd_tile.vecadd_tile, {"op": ("add",), "n": (3, 1000, 2051)}),
    (vecadd_tile.vecadd_tile, {"op": ("rowsum", "matmul"), "n": (64, 128)}),
]
# On tensor cores.
HALF: list[tuple[Any, dict[str, tuple[Any, ...]]]] = [
    (
        attention.attention,
        {"b": (2,), "h": (3,), "s": (128, 200, 257), "d": (32,), "causal": (False, True)},
    ),
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)


def room(*shape: int) -> torch.Tensor:
    return torch.full(shape, math.nan, dtype=torch.float16)


def cases() -> None:
    device = open_device("cpu")
    for table, dtype, word in ((FUSED, "fp32", "fused"), (HALF, "fp16", "half")):
        for case, axes in table:
            for values in itertools.product(*axes.values()):
                bound = dict(zip(axes, values, strict=True))
                workload = case.build(device.context(1), impl="triton", dtype=dtype, **bound)
                error = check(device, workload, seed=1).known_error
                report(f"{word} {case.name} {values}", error)


def products() -> None:
    for m, n, k in ((64, 128, 64), (136, 200, 72), (264, 136, 136)):
        a, b, c = normal(m, k), normal(k, n), room(m, n)
        gemm_triton.gemm(a, b, c)
        report(f"gemm {m} {n} {k}", c, a.double() @ b.double())
    # One tile; one left over; whole tiles and two left over; more parts than are read at once.
    shapes = ((128, 128, 64, 1), (264, 200, 328, 5), (392, 264, 1032, 5), (136, 72, 1288, 40))
    for (m, n, k, programs), is_streamed in itertools.product(shapes, (False, True)):
        place: dict[str, Any] = {"place": "cpu", "programs": programs}
        launch = stream_k_triton.launch(m, n, k, is_streamed=is_streamed, **place)
        for again in (1, 2):  # what the first launch leaves behind must not be seen
            a, b, c = normal(m, k), normal(k, n), room(m, n)
            launch(a, b, c)
            report(f"stream_k {m} {n} {k} {is_streamed} {again}", c, a.double() @ b.double())
    for sizes, n, k in (((5,), 16, 64), ((3, 0, 200), 136, 72), ((130, 1, 127, 6), 264, 200)):
        x, w, y = normal(sum(sizes), k), normal(len(sizes), n, k), room(sum(sizes), n)
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        grouped_gemm_triton.launch(programs=3)(x, w, ends, y)
        parts = zip(x.double().split(sizes), w.double(), strict=True)
        report(f"grouped {sizes} {n} {k}", y, torch.cat([a @ b.t() for a, b in parts]))


def videos() -> None:
    # Boxes that are as wide as a row, or move along it.
    for video, box in (((2, 1, 4), (1, 1, 3)), ((1, 1, 3), (1, 1, 3))):
        q, k, v = (normal(1, 2, 128 * math.prod(video), 32).float() for _ in range(3))
        out = torch.full_like(q, math.nan)
        video_attention_triton.attention(q, k, v, out, video=video, box=box, tile=128)
        for tile in range(math.prod(video)):
            row, x = divmod(tile, video[2])
            first = 128 * (row * video[2] + min(max(x - 1, 0), video[2] - 3))
            own, seen = slice(128 * tile, 128 * tile + 128), slice(first, first + 384)
            scores = q[:, :, own].double() @ k[:, :, seen].double().mT / math.sqrt(32)
            wanted = scores.softmax(-1) @ v[:, :, seen].double()
            report(f"video {video} {tile}", out[:, :, own], wanted)


def fp8() -> None:
    device = open_device("cpu")
    context = device.context(1)
    for m, n, k in ((70, 200, 256), (130, 128, 512)):
        dense = fp8_block.fp8_block_gemm.build(context, impl="triton", m=m, n=n, k=k)
        report(f"fp8 {m} {n} {k}", check(device, dense, seed=1).known_error)
    for layout, experts, rows in (("contiguous", 4, 100), ("masked", 3, 20), ("masked", 2, 200)):
        at: Any = {"layout": layout, "experts": experts, "rows": rows, "n": 256, "k": 256}
        grouped = fp8_grouped.fp8_grouped_gemm.build(context, impl="triton", **at)
        report(f"fp8 {layout} {experts} {rows}", check(device, grouped, seed=1).known_error)
    for tokens in (1, 5, 40):
        whole = moe_fp8.moe_fp8.build(context, impl="triton", model="tiny", tokens=tokens)
        given = whole.make_inputs(device.rng(1))
        whole.fn(*given)
        report(f"moe {tokens}", given[-1], whole.reference(*given))
    # An expert without rows, one that ends with a tile, and columns that fill none.
    x, x_scale = fp8_block.quantise(torch.randn(1, 384, 256), 1)
    w, w_scale = fp8_block.quantise(torch.randn(3, 200, 256), fp8_block.BLOCK)
    begins, counts = (torch.tensor(of, dtype=torch.int32) for of in ((0, 256, 256), (130, 0, 128)))
    y, given = room(384, 200), (x.view(384, 256), x_scale.mT.contiguous(), w, w_scale)
    fp8_block_triton.launch(begins, counts, rows=200)(*given, y)
    for name, own, expert in (("first", slice(130), 0), ("last", slice(256, 384), 2)):
        left = fp8_block.dequantise(x[0, own], x_scale[0, own], 1)
        right = fp8_block.dequantise(w[expert], w_scale[expert], fp8_block.BLOCK)
        report(f"kernel {name}", y[own], left @ right.t())
    report("kernel between", float(not y[130:256].isnan().all()))


def skinny() -> None:
    for m, n, k, programs in ((1, 64, 128, 1), (3, 67, 1160, 4), (70, 130, 1288, 9)):
        launch = skinny_triton.launch(m, n, k, place="cpu", programs=programs)
        for again in (1, 2):
            x, w, y = normal(m, k), normal(n, k), room(m, n)
            launch(x, w, y)
            report(f"skinny {m} {n} {k} {again}", y, x.double() @ w.double().t())


def rows() -> None:
    sizes = ((3, 64), (9, 1001), (3, 5), (3, 8191))
    given = [normal(*size).float() for size in sizes] + [normal(9, 1001), normal(5, 32768)]
    for x in given:
        y = torch.full_like(x, math.nan)
        softmax_triton.softmax(x + 100, y)
        report(f"softmax {tuple(x.shape)} {x.dtype}", y, (x + 100).double().softmax(1))
    for to, kind in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):
        for count, cols in ((1, 64), (3, 1000), (5, 7168)):
            x, scale = (3 * torch.randn(count, cols)).bfloat16(), torch.full((count,), math.nan)
            codes = torch.full((count, cols), 127, dtype=torch.uint8)
            most = {"fp8": 448.0, "int8": 127.0}[to]
            inverse = quantize_cast.inverse_of(most)
            quantize_cast_triton.quantise(x, codes.view(kind), scale, largest=most, inverse=inverse)
            wanted, scales = quantize_cast.reference(x, to=to)
            report(f"{to} {count} {cols} codes", codes, wanted.double())
            report(f"{to} {count} {cols} scales", scale, scales.double())
    for count, cols in ((3, 128), (5, 384)):
        x, weight = normal(count, cols).float(), normal(cols).float()
        codes = torch.zeros(count, cols, dtype=torch.float8_e4m3fn)
        scales = torch.full((count, cols // 128), math.nan)
        eps, most, group = norm_quantize.EPS, norm_quantize.MOST, norm_quantize.GROUP
        norm_quantize_triton.quantise(x, weight, codes, scales, eps=eps, most=most, group=group)
        wanted, sizes = norm_quantize.reference(x, weight)
        numbers = wanted.to(codes.dtype).view(torch.uint8).double()
        report(f"fp8 norm {count} {cols} codes", codes.view(torch.uint8), numbers)
        report(f"fused norm {count} {cols} scales", scales, sizes)
    device = open_device("cpu")
    for kind in mx_quantize.BLOCK:
        at: Any = {"to": kind, "model": "tiny", "tokens": 256, "impl": "triton"}
        built = mx_quantize.mx_quantize.build(device.context(1), **at)
        inputs = built.make_inputs(device.rng(1))
        built.fn(*inputs)
        codes, scales = (each.double() for each in built.reference(*inputs))
        report(f"{'fp8' if kind == 'mxfp8' else 'fused'} {kind} codes", inputs[2], codes)
        report(f"fused {kind} scales", inputs[3], scales)


if __name__ == "__main__":
    torch.manual_seed(1)
    for part in (cases, products, videos, fp8, skinny, rows):
        part()
