"""Weights of 8 and 4 bits that become bf16 in the kernel that multiplies them."""

from pathlib import Path
from typing import Any

from perfsuite import Beats, arch, cuda, operator, package
from perfsuite.gpu import Later, load, matmul64, sm_count, torch

GROUP = 128  # weights of 4 bits that share a scale
_LARGEST, _PARTS = {"int8": 127, "int4": 7}, {"int8": 2, "int4": 4}
_WARPS = 16  # of a block of mixed_gemv.cu, one on each multiprocessor
_MANY = [16, 64, 256]
_NEEDS = [
    cuda(),
    package("triton.experimental.gluon.language.nvidia.hopper").when(m=_MANY),
    arch("sm_90").when(m=_MANY),  # wgmma, of weights in registers
]
kernels = Later("perfsuite_compute.mixed_gluon")


@operator(
    smoke={"m": 1, "n": 1024, "k": 1024, "impl": "int4"},
    nightly=[
        {"m": [1, 256], "n": 28672, "k": 4096},
        # One row fewer than outputs of Llama-3.1-8B's gate and up projections fills no tile.
        {"m": 1, "n": 28671, "k": 4096, "impl": "int4"},
    ],
    full=[
        {"m": 1, "n": 1024, "k": 1024},
        {"m": 1, "n": 28671, "k": 4096, "impl": "int8"},
        {"m": _MANY[:2], "n": 28672, "k": 4096},
    ],
    # Bytes are those of each format.
    rate_dtype="bf16",
    # Weights are drawn in bf16, quantised through fp32, and made float64 for the reference.
    memory_bytes=lambda m, n, k, impl: 35 * n * k + 12 * m * n + (2 * m + 8 * min(m, 2048)) * k,
    tags=["quantisation", "decoding"],
    source="weight-only quantisation: chapter 10 of the book",
)
def mixed_gemm(rng: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    """Multiply m rows of bf16 by the transpose of quantised weights [n, k].

    ``bf16`` is cuBLAS on weights that are not quantised. ``int8`` has one scale an output, applied
    at the end; ``int4`` one for 128 weights. With one row the time is that of reading the weights,
    and fewer bits are less time, as long as taking them apart is none: CUDA C++ puts the nibbles of
    either format into the mantissas of bf16 in place, one instruction for two, and has tensor cores
    multiply those. With 256 rows it is that of the tensor cores, and turning weights into bf16
    comes on top: in Gluon, on Hopper alone, under the product of the step before, in the order and
    in the registers that wgmma takes; int4 is scaled in bf16, and its scale is rounded for that.
    Bytes are those of each format, so that the efficiency says how near to its own bound each is.

    On an H200 one row took about 35 us in int8 and 21 in int4, 76 and 68 % of the ceiling; for
    as many bytes as int8's ``gemv_skinny`` needs 28. Fixed is some 5 us in both: starting, turning
    x into the tensor cores' order before the first product, and a last turn in which two of five
    warps have rows left (57344 x 8192 weights reach 93 and 88 %, by a sweep). The rest goes with
    the bytes: a warp asks for more only after the 190 instructions that 2 KiB take, which by count
    keep the pipe for whole numbers busy for a third of the time and more. On an H100 256 rows took
    99 us in int8 and 104 in int4, 100 in bf16 by cuBLAS; 64 rows 52 and 41, 82 in bf16.
    """
    x, w = rng.randn(m, k, dtype="bfloat16"), rng.randn(n, k, dtype="bfloat16")
    w *= 0.25 + 3.75 * rng.rand(n, 1, dtype="bfloat16")  # so that a wrong scale shows
    y = rng.empty(m, n, dtype="bfloat16")
    return (x, w, w, y) if impl == "bf16" else (x, *quantise(w, impl), y)


@mixed_gemm.reference
def _reference(x: Any, w: Any, scale: Any, y: Any, *, impl: str) -> Any:
    """Multiply what the codes stand for, so that only the multiplication is judged."""
    return matmul64(x, dequantise(w, scale, impl).t())


@mixed_gemm.wrong
def _of_the_next(x: Any, w: Any, scale: Any, y: Any, *, impl: str) -> Any:
    """Take the scale of the next row or group; in bf16, which has none, drop the last of k."""
    if impl == "bf16":
        return x[:, :-64] @ w[:, :-64].t()
    next_one = scale.flatten().roll(-1).view(scale.shape)
    return _reference(x, w, next_one, y, impl=impl).to(y.dtype)


@mixed_gemm.impl
def _bf16(x: Any, w: Any, scale: Any, y: Any) -> None:
    torch.mm(x, w.t(), out=y)


@mixed_gemm.impl(name="int4", needs=_NEEDS)
@mixed_gemm.impl(
    needs=_NEEDS,
    beats=Beats(
        "bf16",
        1.3,
        "PyTorch blog, 'Accelerating Generative AI with PyTorch II: GPT, Fast': int8 "
        "weights make decoding of one sequence about 50 % faster, the whole model on an A100",
        at={"m": 1, "n": 28672},
        needs=(arch("sm_90"),),
    ),
)
def _int8(ctx: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    if m == 1:
        sms, own = sm_count(), {"INT4": 1} if impl == "int4" else {}
        file = str(Path(__file__).with_name("mixed_gemv.cu"))
        run = load(ctx, file, "mixed_gemv", N=n, K=k, WARPS=_WARPS, **own)
        return lambda x, w, scale, y: run(sms, 32 * _WARPS, x, w, scale, y)
    return kernels.launch(m, n, k, kind=impl)


def quantise(w: Any, kind: str) -> tuple[Any, Any]:
    """Return integer weights and fp32 scales: one a row (int8), or one for GROUP of it (int4).

    Codes lie as tensor cores take them, in steps of 64 bytes: 128 codes of int4, 64 of int8. In a
    step, k counts q, p, t and e: 4, 4 (int8: 2), 4 and 2 of them, e the fastest. Such a code is
    number p + 4 e (int8: p + 2 e) of word 4 t + q. int4 has two in a byte, the first low, both
    plus 8.
    """
    rows, k = w.shape
    groups = w.float().view(rows, -1, k if kind == "int8" else GROUP)
    scale = groups.abs().amax(dim=2) / _LARGEST[kind]
    codes = (groups / scale[..., None]).round_().clamp_(-_LARGEST[kind], _LARGEST[kind])
    codes = codes.to(torch.int8).view(rows, -1, 4, _PARTS[kind], 4, 2).permute(0, 1, 4, 2, 5, 3)
    if kind == "int8":
        return codes.reshape(rows, k), scale.view(rows)
    low, high = (codes.reshape(rows, -1, 2) + 8).to(torch.uint8).unbind(2)
    return low | high << 4, scale


def dequantise(w: Any, scale: Any, kind: str) -> Any:
    """Return what quantised weights stand for, in float64."""
    if kind == "bf16":
        return w.double()
    codes = w if kind == "int8" else torch.stack((w & 15, w >> 4), dim=2).to(torch.int8) - 8
    codes = codes.view(len(w), -1, 4, 4, 2, _PARTS[kind]).permute(0, 1, 3, 5, 2, 4)
    scale = scale.view(len(w), -1)
    groups = codes.reshape(*scale.shape, -1).double()
    return groups.mul_(scale[..., None]).view(len(w), -1)
