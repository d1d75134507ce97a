"""Matrix multiplication of block-scaled operands: nvfp4, mxfp4 and mxfp8."""

from typing import Any

from perfsuite import Claim, arch, cuda, operator
from perfsuite.gpu import TRITON, Later, matmul64, torch
from perfsuite_blackwell.formats import FORMATS, Format, values_of
from perfsuite_blackwell.quantise import Quantised, dequantise, quantise, tile_scales, untile_scales

# torch._scaled_mm has no mxfp4 on NVIDIA's GPUs.
_CUBLAS = {"format": ["nvfp4", "mxfp8"], "impl": "cublas"}
_TRITON = {"format": [*FORMATS], "impl": "triton"}
_DEQUANTISE = {"format": [*FORMATS], "impl": "dequantise"}


def _sized(size: int, *points: dict[str, Any]) -> Any:
    return [{**each, "m": size, "n": size, "k": size} for each in points]


@operator(
    smoke=_sized(512, _CUBLAS, _TRITON),
    nightly=[
        *_sized(512, _DEQUANTISE),
        *_sized(4096, _CUBLAS, _DEQUANTISE, _TRITON),
        *_sized(8192, _CUBLAS, _DEQUANTISE, _TRITON),
    ],
    rate_dtype=lambda *, format, impl: (  # noqa: A006
        "bf16" if impl == "dequantise" else f"fp{FORMATS[format].bits}"
    ),
    # Quantising and looking up go through 8-byte values and addresses, some at a time.
    memory_bytes=lambda m, **_: 104 * m * m,
    tags=["fp4", "fp8", "tensor-cores", "quantisation"],
    source="NVFP4 matrix multiplication: chapters 6 and 10 of the book; OCP Microscaling Formats "
    "(MX) v1.0",
)
def block_scaled_gemm(rng: Any, *, format: str, m: int, n: int, k: int) -> Any:  # noqa: A002
    """Multiply a by the transpose of w into bf16, as a linear layer does, from block-scaled codes.

    ``dequantise`` takes codes back to bf16 in memory and multiplies that: what a GPU without such
    tensor cores is left with, and the twin that runs on a CPU. ``triton`` is `tl.dot_scaled`:
    tcgen05 with scales in tensor memory on sm_100, one warp's instructions on sm_120, and on sm_90
    an emulation that widens tiles to bf16 in registers (Triton has none for nvfp4). ``cublas`` is
    `torch._scaled_mm`, for nvfp4 with the tensors' factor multiplied in afterwards.

    Operands are quantised outside the launch, as weights are ahead of time and activations in the
    kernel before. Rows differ in size by up to 16, as activations do, so that a scale that lands on
    another row shows.
    """
    a = rng.randn(m, k, dtype="bfloat16")
    a *= 0.25 + 3.75 * rng.rand(m, 1, dtype="bfloat16")
    w = rng.randn(n, k, dtype="bfloat16")
    out = rng.empty(m, n, dtype="bfloat16")
    form = FORMATS[format]
    left, right = quantise(a, form), quantise(w, form)
    tiles = tile_scales(left.scales), tile_scales(right.scales)
    return left.codes, tiles[0], right.codes, tiles[1], left.factor * right.factor, out


@block_scaled_gemm.reference
def _reference(*inputs: Any, format: str) -> Any:  # noqa: A002
    """Multiply what the codes stand for, so that only the multiplication is judged."""
    form, (a, a_tiles, w, w_tiles, factor, _) = FORMATS[format], inputs
    product = matmul64(look_up(a, a_tiles, form), look_up(w, w_tiles, form).t())
    return product.mul_(factor.double())


@block_scaled_gemm.wrong
def _misread(*inputs: Any, format: str) -> None:  # noqa: A002
    """Read the scales of a row by row, not in the tiles of tensor cores."""
    a, a_tiles, *others = inputs
    _dequantise(a, untile_scales(a_tiles).reshape(a_tiles.shape), *others, format=format)


@block_scaled_gemm.impl(needs=[cuda(), arch("sm_100+")])
def _cublas(*inputs: Any, format: str) -> None:  # noqa: A002
    form, (a, a_tiles, w, w_tiles, factor, out) = FORMATS[format], inputs
    element = torch.float8_e4m3fn if form.element == "e4m3" else torch.float4_e2m1fn_x2
    scale = torch.float8_e4m3fn if form.scale == "e4m3" else torch.float8_e8m0fnu
    torch._scaled_mm(  # noqa: SLF001
        a.view(element),
        w.view(element).t(),
        scale_a=a_tiles.view(scale).flatten(),
        scale_b=w_tiles.view(scale).flatten(),
        out_dtype=torch.bfloat16,
        out=out,
    )
    if form.has_factor:
        out.mul_(factor)


@block_scaled_gemm.impl
def _dequantise(*inputs: Any, format: str) -> None:  # noqa: A002
    form, (a, a_tiles, w, w_tiles, factor, out) = FORMATS[format], inputs
    # A code times its scale has 6 bits at most: bf16 holds it.
    wide_a = dequantise(Quantised(a, untile_scales(a_tiles), factor), form).bfloat16()
    wide_w = dequantise(Quantised(w, untile_scales(w_tiles), factor), form).bfloat16()
    torch.mm(wide_a, wide_w.t(), out=out)
    if form.has_factor:
        out.mul_(factor)


@block_scaled_gemm.impl(needs=[*TRITON, arch("sm_90+"), arch("sm_100+").when(format="nvfp4")])
def _triton(ctx: Any, *, format: str) -> Any:  # noqa: A002
    return Later("perfsuite_blackwell.block_scaled_triton").launcher(FORMATS[format])


def look_up(codes: Any, tiles: Any, form: Format) -> Any:
    """Return the matrix that codes and tiled scales stand for in float64, by table and address."""
    device = codes.device
    table = torch.tensor(values_of(form.element), dtype=torch.float64, device=device)
    nibbles = torch.tensor([0, 4], device=device)
    code = codes.view(torch.uint8).long()
    values = table[code] if form.bits == 8 else table[code.unsqueeze(2) >> nibbles & 15]  # noqa: PLR2004
    values = values.reshape(codes.shape[0], -1)
    rows, columns = values.shape
    row = torch.arange(rows, device=device)[:, None]
    block = torch.arange(columns, device=device)[None, :] // form.block
    wide = columns // form.block // 4
    address = (
        (row // 128 * wide + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
    )
    scales = torch.tensor(values_of(form.scale), dtype=torch.float64, device=device)
    return values * scales[tiles.view(torch.uint8).flatten().long()[address]]


_BF16 = "compute.gemm[dtype=bf16,m={m},n={n},k={k},impl=torch]"
_RATES = "stas00/ml-engineering, maximum achievable matmul TFLOP/s"
MXFP8_GEMM = Claim(
    name="mxfp8_gemm",
    case="block_scaled_gemm",
    faster={"format": "mxfp8"},
    than=_BF16,
    by=1.5,
    at={"m": (8192,), "impl": ("cublas",)},
    needs=(cuda(), arch("sm_100")),
    source=f"{_RATES}: B200 3432.5 in fp8 against 1745 in bf16, a ratio of 1.97 without "
    "scales for blocks; 1.5 is asked for",
)
NVFP4_GEMM = Claim(
    name="nvfp4_gemm",
    case="block_scaled_gemm",
    faster={"format": "nvfp4"},
    than=_BF16,
    by=2.0,
    at={"m": (8192,), "impl": ("cublas",)},
    needs=(cuda(), arch("sm_100")),
    source="NVIDIA B200 datasheet: 9000 TFLOP/s dense fp4, 2250 bf16, a ratio of 4; two is "
    "asked for, since the tensors' factor is one more pass through the result",
)
