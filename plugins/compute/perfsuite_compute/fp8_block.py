"""Products of fp8 with a scale for each block, as DeepSeek-V3 has them: one, or one an expert."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later, matmul64, torch

BLOCK = 128  # values of k that share a scale; of weights, the rows, too
_LARGEST = 448.0  # of float8_e4m3fn
_SHAPES = [(7168, 2048), (4096, 7168), (2112, 7168)]  # n and k of DeepSeek-V3's layers
_HOPPER = [cuda(), arch("sm_90")]
TRITON = [cuda(), arch("sm_90+"), package("triton")]
GLUON = [*_HOPPER, package("triton.experimental.gluon.language.nvidia.hopper")]
kernels = Later("perfsuite_compute.fp8_block_triton")
gluon = Later("perfsuite_compute.fp8_block_gluon")


def quantise(x: Any, rows: int, cols: int = BLOCK) -> tuple[Any, Any]:
    """Return x [..., m, k] in e4m3, and the scales of its blocks, [..., m / rows, k / cols]."""
    padded = torch.nn.functional.pad(x.float(), (0, 0, 0, -x.shape[-2] % rows))
    blocks = padded.unflatten(-2, (-1, rows)).unflatten(-1, (-1, cols))
    scale = blocks.abs().amax((-3, -1)) / _LARGEST
    blocks /= scale[..., :, None, :, None]
    # Rounding may carry a value just past the largest, which e4m3 would turn into NaN.
    codes = blocks.clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return codes.flatten(-2).flatten(-3, -2)[..., : x.shape[-2], :].contiguous(), scale


def dequantise(x: Any, scale: Any, rows: int) -> Any:
    """Return what codes stand for, in float64; bf16 stands for itself."""
    if x.dtype is torch.bfloat16:
        return x.double()
    wide = scale.double().repeat_interleave(rows, -2)[..., : x.shape[-2], :]
    return x.double().mul_(wide.repeat_interleave(x.shape[-1] // scale.shape[-1], -1))


def operands(rng: Any, parts: int, rows: int, weights: tuple[int, ...], impl: str) -> Any:
    """Return x [parts * rows, k] and w [experts, n, k], each with the scales of an implementation.

    Scales of x are [parts, k / 128, rows]. ``rowwise`` has one scale a row, ``bf16`` has none:
    its values are those that the codes stand for. Blocks differ in size by up to 16.
    """
    k = weights[-1]
    x, w = (rng.randn(*of, dtype="bfloat16") for of in ((parts, rows, k), weights))
    x.unflatten(-1, (-1, BLOCK)).mul_(
        0.25 + 3.75 * rng.rand(parts, rows, k // BLOCK, 1, dtype="bfloat16")
    )
    w *= 0.25 + 3.75 * rng.rand(weights[0], weights[1], 1, dtype="bfloat16")
    by_rows = impl == "rowwise"
    codes, scale = quantise(x, 1, k if by_rows else BLOCK)
    w_codes, w_scale = quantise(w, 1 if by_rows else BLOCK, k if by_rows else BLOCK)
    if impl == "bf16":
        codes = dequantise(codes, scale, 1).bfloat16()
        w_codes = dequantise(w_codes, w_scale, BLOCK).bfloat16()
    return codes.view(-1, k), scale.mT.contiguous(), w_codes, w_scale


def _work(m: int, n: int, k: int, impl: str) -> Work:
    size, rate = (2, "bf16") if impl == "bf16" else (1, "fp8")
    scales = 0 if impl == "bf16" else (m + -(-n // BLOCK)) * (k // BLOCK)
    return Work(size * (m * k + k * n) + 4 * scales, 2 * m * n, 2 * m * n * k, rate)


@operator(
    smoke={"m": 128, "n": 2112, "k": 7168, "impl": "triton"},
    nightly=[{"m": 4096, "n": 4096, "k": 7168}, {"m": [128, 4096], "n": 7168, "k": 2048}],
    full=[{"m": m, "n": n, "k": k} for m in (128, 4096) for n, k in _SHAPES],
    needs=_HOPPER[:1],
    work=_work,
    tags=["fp8", "tensor-cores"],
    source="DeepSeek-V3's report, section 3.3.2; its shapes: deepseek-ai/DeepGEMM",
)
def fp8_block_gemm(rng: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    """Multiply x by the transpose of w into bf16, from e4m3 with a scale for each 128 values of k.

    Of x each row has its own scales, of w a block of 128 rows. So each 128 of k must be summed on
    their own and scaled into fp32, on CUDA cores, which the tensor cores wait for unless two
    warpgroups take turns. Operands are quantised outside the launch. ``torch`` is cuBLAS
    (``torch._scaled_mm``), ``triton`` one persistent kernel, ``gluon`` the same with a warp that
    copies and two warpgroups that multiply; ``bf16`` is cuBLAS on what the codes stand for, which
    fp8 has to beat. ``deep_gemm`` and ``vllm`` run where they are installed. On an H100 cuBLAS
    holds the record at 4096 x 4096 x 7168: 1.32 PFLOP/s, 87 % of the ceiling. ``gluon`` has 1.11,
    ``triton`` 0.91, ``bf16`` 0.80.
    """
    return *operands(rng, 1, m, (1, n, k), impl), rng.empty(m, n, dtype="bfloat16")


@fp8_block_gemm.reference
def _reference(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
    """Multiply what the codes stand for, so that only the multiplication is judged."""
    return matmul64(dequantise(x, x_scale[0].mT, 1), dequantise(w[0], w_scale[0], BLOCK).t())


@fp8_block_gemm.wrong
def _without_the_last_block(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
    """Forget the last 128 values of k."""
    k = x.shape[1] - BLOCK
    short = x[:, :k], x_scale[:, :-1], w[..., :k], w_scale[..., :-1]
    return _reference(*short, y).to(y.dtype)


@fp8_block_gemm.wrong
def _scales_of_the_next(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
    """Take the next block's scale of x; in bf16, which has none, its values."""
    if x.dtype is torch.bfloat16:
        return x.roll(BLOCK, 1) @ w[0].t()
    return _reference(x, x_scale.roll(1, 1), w, w_scale, y).to(y.dtype)


@fp8_block_gemm.impl
def _bf16(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> None:
    torch.mm(x, w[0].t(), out=y)


@fp8_block_gemm.impl(needs=_HOPPER)
def _torch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> None:
    scaled_mm(x, x_scale[0], w[0], w_scale[0], y)


def scaled_mm(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> None:
    """Multiply one matrix by cuBLAS; k is a multiple of 512, rows of x one of 4."""
    torch._scaled_mm(  # noqa: SLF001
        x, w.t(), scale_a=x_scale.t(), scale_b=w_scale.t(), out_dtype=torch.bfloat16, out=y
    )


def _one(ctx: Any, m: int) -> tuple[Any, Any]:
    """Return where rows of the only matrix begin, and how many there are."""
    return tuple(torch.tensor([of], dtype=torch.int32, device=ctx.place) for of in (0, m))


@fp8_block_gemm.impl(needs=TRITON)
def _triton(ctx: Any, *, m: int) -> Any:
    return kernels.launch(*_one(ctx, m), rows=m)


@fp8_block_gemm.impl(
    needs=GLUON,
    beats=Beats(
        "bf16",
        1.3,
        "deepseek-ai/DeepGEMM#168: 1424 TFLOP/s on an H800 at this shape; "
        "stas00/ml-engineering: an H100's best in bf16 is 794.5, a ratio of 1.79",
        at={"m": 4096, "n": 4096, "k": 7168},
    ),
)
def _gluon(ctx: Any, *, m: int) -> Any:
    return gluon.launch(*_one(ctx, m), rows=m)


@fp8_block_gemm.impl(needs=[*_HOPPER, package("deep_gemm")])
def _deep_gemm(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> None:
    Later("deep_gemm").fp8_gemm_nt((x, x_scale[0].t()), (w[0], w_scale[0]), y)


@fp8_block_gemm.impl(needs=[*_HOPPER, package("vllm")])
def _vllm(ctx: Any) -> Any:
    utils = Later("vllm.model_executor.layers.quantization.utils.fp8_utils")
    multiply = utils.w8a8_triton_block_scaled_mm
    return lambda x, x_scale, w, w_scale, y: multiply(
        x, w[0], x_scale[0].t(), w_scale[0], [BLOCK, BLOCK], torch.bfloat16
    )
