"""Weights of 8 and 4 bits that become bf16 in the kernel that multiplies them."""

from pathlib import Path
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import TRITON, Later, matmul64, sm_count, torch

GROUP = 128  # weights of 4 bits that share a scale
_LARGEST = {"int8": 127, "int4": 7}
_WARPS = 16  # of a block of mixed_gemv.cu, one on each multiprocessor
kernels = Later("perfsuite_compute.skinny_triton")


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
        {"m": [16, 64], "n": 28672, "k": 4096},
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
    comes on top: in Triton, each once; int4 is scaled in bf16 (with up to 64 rows the sums of 128
    are, in fp32). Bytes are those of each format, so that the efficiency says how near to its own
    bound each one is.

    On an H200 one row took about 35 us in int8 and 21 in int4, 76 and 68 % of the ceiling; for
    as many bytes as int8's ``gemv_skinny`` needs 28. Fixed is some 5 us in both: starting, turning
    x into the tensor cores' order before the first product, and a last turn in which two of five
    warps have rows left (57344 x 8192 weights reach 93 and 88 %, by a sweep). The rest goes with
    the bytes: a warp asks for more only after the 190 instructions that 2 KiB take, which by count
    keep the pipe for whole numbers busy for a third of the time and more. 256 rows took about
    127 us in int8 and 146 in int4, 70 and 61 % of the rate of cuBLAS in bf16: tensor cores wait
    while warps turn the next weights into bf16, and a tile's sums take the registers of a second
    program, which would multiply meanwhile.
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


@mixed_gemm.impl(name="int4", needs=TRITON)
@mixed_gemm.impl(
    needs=TRITON,
    beats=Beats(
        "bf16",
        1.3,
        "PyTorch blog, 'Accelerating Generative AI with PyTorch II: GPT, Fast': int8 "
        "weights make decoding of one sequence about 50 % faster, the whole model on an A100",
        at={"m": 1, "n": 28672},
        needs=(cuda(), arch("sm_90")),
    ),
)
def _int8(ctx: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    sms = sm_count()
    if m == 1:
        # Of k a multiple of 16, of 128 for int4.
        macros = {"N": n, "K": k, "WARPS": _WARPS, **({"INT4": 1} if impl == "int4" else {})}
        options = tuple(f"-D{name}={value}" for name, value in macros.items())
        run = ctx.load_cuda(
            Path(__file__).with_name("mixed_gemv.cu"), "mixed_gemv", options=options
        )
        return lambda x, w, scale, y: run(sms, 32 * _WARPS, x, w, scale, y)
    programs = kernels.PROGRAMS_PER_SM * sms
    return kernels.launch(m, n, k, kind=impl, place=ctx.place, programs=programs)


def quantise(w: Any, kind: str) -> tuple[Any, Any]:
    """Return integer weights and fp32 scales: one a row (int8), or one for GROUP of it (int4).

    int4 has two in a byte: byte j of a group holds weights j (low) and j + 64 (high), both plus 8,
    so that a kernel finds each half of a group in a row.
    """
    rows, k = w.shape
    groups = w.float().view(rows, -1, k if kind == "int8" else GROUP)
    scale = groups.abs().amax(dim=2) / _LARGEST[kind]
    codes = (groups / scale[..., None]).round_().clamp_(-_LARGEST[kind], _LARGEST[kind])
    if kind == "int8":
        return codes.view(rows, k).to(torch.int8), scale.view(rows)
    low, high = (codes + 8).to(torch.uint8).chunk(2, dim=2)
    return (low | high << 4).view(rows, k // 2), scale


def dequantise(w: Any, scale: Any, kind: str) -> Any:
    """Return what quantised weights stand for, in float64."""
    if kind == "bf16":
        return w.double()
    if kind == "int8":
        return w.double() * scale.double()[:, None]
    packed = w.view(*scale.shape, GROUP // 2)
    codes = torch.cat((packed & 15, packed >> 4), dim=2)
    return ((codes.double() - 8) * scale.double()[..., None]).view(w.shape[0], -1)
