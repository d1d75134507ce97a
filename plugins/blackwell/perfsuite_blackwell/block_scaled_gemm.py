"""Matrix multiplication of block-scaled operands: nvfp4, mxfp4 and mxfp8 against bf16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package
from perfsuite_blackwell.formats import FORMATS, Format

# torch._scaled_mm has no mxfp4 on NVIDIA's GPUs.
_IMPLS = {
    "bf16": ("cublas",),
    "nvfp4": ("dequantise", "triton", "cublas"),
    "mxfp4": ("dequantise", "triton"),
    "mxfp8": ("dequantise", "triton", "cublas"),
}


def _is_asked(format: str, m: int, n: int, k: int, impl: str) -> bool:  # noqa: A002
    return m == n == k and impl in _IMPLS[format]


def _work(format: str, m: int, n: int, k: int, impl: str) -> Work:  # noqa: A002
    form = FORMATS.get(format)
    operands = (m * k + k * n) * (form.bits_per_value if form else 16) / 8
    rate = f"fp{form.bits}" if form and impl != "dequantise" else "bf16"
    return Work(
        read_bytes=operands + (4 if form else 0),
        write_bytes=2 * m * n,
        flops=2 * m * n * k,
        rate_dtype=rate,
    )


def _memory_bytes(format: str, m: int, n: int, k: int, impl: str) -> int:  # noqa: A002
    from perfsuite_blackwell.reference import matmul_bytes

    # Quantising and looking up go through 8-byte values and addresses, some at a time.
    return 40 * (m * k + n * k) + 4 * m * n + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "format": list(_IMPLS),
        "m": [4096, 8192],
        "n": [4096, 8192],
        "k": [4096, 8192],
        "impl": ["cublas", "dequantise", "triton"],
    },
    smoke={"m": [512], "n": [512], "k": [512]},
    only=_is_asked,
    waits=lambda impl, **_: impl == "dequantise",
    needs=(
        package("torch"),
        cuda().when(impl=("cublas", "triton")),
        package("triton").when(impl="triton"),
        arch("sm_90+").when(impl="triton"),
        arch("sm_100+").when(impl="triton", format="nvfp4"),
        arch("sm_100+").when(impl="cublas", format=("nvfp4", "mxfp8")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["fp4", "fp8", "tensor-cores", "quantisation"],
    source="NVFP4 matrix multiplication: chapters 6 and 10 of the book; OCP Microscaling Formats "
    "(MX) v1.0",
)
def block_scaled_gemm(
    ctx: Any,
    format: str,  # noqa: A002
    m: int,
    n: int,
    k: int,
    impl: str,
) -> Workload:
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
    form = FORMATS.get(format)
    return Workload(
        fn=_launch_of(form, impl),
        make_inputs=lambda rng: _make_inputs(rng, form, (m, n, k)),
        reference=_reference_bf16 if form is None else _reference_of(form),
        wrong=_without_last_step if form is None else _with_untiled_scales(form, impl),
    )


def _make_inputs(rng: Any, form: Format | None, shape: tuple[int, int, int]) -> tuple[Any, ...]:
    from perfsuite_blackwell.quantise import quantise, tile_scales

    m, n, k = shape
    a = rng.randn(m, k, dtype="bfloat16")
    a *= 0.25 + 3.75 * rng.rand(m, 1, dtype="bfloat16")
    w = rng.randn(n, k, dtype="bfloat16")
    out = rng.empty(m, n, dtype="bfloat16")
    if form is None:
        return a, w, out
    left, right = quantise(a, form), quantise(w, form)
    tiles = tile_scales(left.scales), tile_scales(right.scales)
    return left.codes, tiles[0], right.codes, tiles[1], left.factor * right.factor, out


def _launch_of(form: Format | None, impl: str) -> Callable[..., None]:
    if form is None:
        return _launch_bf16
    if impl == "triton":
        from perfsuite_blackwell.block_scaled_triton import launcher

        return launcher(form)
    return _launch_cublas(form) if impl == "cublas" else _launch_dequantise(form)


def _launch_bf16(a: Any, w: Any, out: Any) -> None:
    import torch

    torch.mm(a, w.t(), out=out)


def _launch_dequantise(form: Format) -> Callable[..., None]:
    import torch

    from perfsuite_blackwell.quantise import Quantised, dequantise, untile_scales

    def launch(a: Any, a_tiles: Any, w: Any, w_tiles: Any, factor: Any, out: Any) -> None:
        # A code times its scale has 6 bits at most: bf16 holds it.
        wide_a = dequantise(Quantised(a, untile_scales(a_tiles), factor), form).bfloat16()
        wide_w = dequantise(Quantised(w, untile_scales(w_tiles), factor), form).bfloat16()
        torch.mm(wide_a, wide_w.t(), out=out)
        if form.has_factor:
            out.mul_(factor)

    return launch


def _launch_cublas(form: Format) -> Callable[..., None]:
    import torch

    element = torch.float8_e4m3fn if form.element == "e4m3" else torch.float4_e2m1fn_x2
    scale = torch.float8_e4m3fn if form.scale == "e4m3" else torch.float8_e8m0fnu

    def launch(a: Any, a_tiles: Any, w: Any, w_tiles: Any, factor: Any, out: Any) -> None:
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

    return launch


def _reference_bf16(a: Any, w: Any, out: Any) -> Any:
    from perfsuite_blackwell.reference import matmul

    return matmul(a, w.t())


def _reference_of(form: Format) -> Callable[..., Any]:
    from perfsuite_blackwell.reference import look_up, matmul

    def reference(a: Any, a_tiles: Any, w: Any, w_tiles: Any, factor: Any, out: Any) -> Any:
        """Multiply what the codes stand for, so that only the multiplication is judged."""
        product = matmul(look_up(a, a_tiles, form), look_up(w, w_tiles, form).t())
        return product.mul_(factor.double())

    return reference


def _without_last_step(a: Any, w: Any, out: Any) -> None:
    """Leave out the last 64 of k, as a loop that rounds its count down does."""
    _launch_bf16(a[:, :-64], w[:, :-64], out)


def _with_untiled_scales(form: Format, impl: str) -> Callable[..., None]:
    """Hand the scales of a over row by row, not in the tiles that tensor cores take."""
    from perfsuite_blackwell.quantise import untile_scales

    launch = _launch_of(form, impl)

    def wrong(a: Any, a_tiles: Any, w: Any, w_tiles: Any, factor: Any, out: Any) -> None:
        rows = untile_scales(a_tiles).reshape(a_tiles.shape)
        launch(a, rows, w, w_tiles, factor, out)

    return wrong


_RATES = "stas00/ml-engineering, maximum achievable matmul TFLOP/s"
CASES: tuple[perfsuite.Case | Claim, ...] = (
    block_scaled_gemm,
    Claim(
        name="mxfp8_gemm",
        case="block_scaled_gemm",
        faster={"format": "mxfp8"},
        than={"format": "bf16"},
        by=1.5,
        at={"m": (8192,), "impl": ("cublas",)},
        needs=(cuda(), arch("sm_100")),
        source=f"{_RATES}: B200 3432.5 in fp8 against 1745 in bf16, a ratio of 1.97 without "
        "scales for blocks; 1.5 is asked for",
    ),
    Claim(
        name="nvfp4_gemm",
        case="block_scaled_gemm",
        faster={"format": "nvfp4"},
        than={"format": "bf16"},
        by=2.0,
        at={"m": (8192,), "impl": ("cublas",)},
        needs=(cuda(), arch("sm_100")),
        source="NVIDIA B200 datasheet: 9000 TFLOP/s dense fp4, 2250 bf16, a ratio of 4; two is "
        "asked for, since the tensors' factor is one more pass through the result",
    ),
)
