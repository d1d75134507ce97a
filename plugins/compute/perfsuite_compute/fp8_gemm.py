"""Matrix multiplication in 8-bit floating point: what halving the operand's bits is worth."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator
from perfsuite.gpu import matmul64, torch
from perfsuite_compute.fp8_block import quantise


def _work(m: int, n: int, k: int, impl: str) -> Work:
    scales = m + n if impl == "fp8_rowwise" else 2
    return Work(m * k + k * n + 4 * scales, 2 * m * n, 2 * m * n * k, "fp8")


@operator(
    smoke={"m": 2048, "n": 2048, "k": 2048, "impl": "fp8_rowwise"},
    nightly=[
        {"m": 8192, "n": 8192, "k": 8192},
        {"m": 4096, "n": 4096, "k": 4096, "impl": "fp8_rowwise"},
    ],
    full=[{"m": size, "n": size, "k": size} for size in (2048, 4096)],
    needs=[cuda(), arch("sm_89+")],
    work=_work,
    # Operands twice, in float64 the second time; 2-byte outputs; the reference and its rows.
    memory_bytes=lambda m, **_: 48 * m * m,
    # Hopper's fp8 tensor cores keep about 14 bits while they accumulate (DeepSeek-V3 report,
    # section 3.3.2: errors near 2 % at k = 4096), so bf16's own limit of 1e-2 is too tight for fp8.
    tolerance=2e-2,
    tags=["fp8", "tensor-cores"],
    # Smaller multiplications do not fill a large GPU for long.
    ceilings={"fp8": lambda m, **_: m >= 4096},  # noqa: PLR2004
    source="FP8 and the Transformer Engine: chapter 6 of the book",
)
def fp8_gemm(rng: Any, *, m: int, n: int, k: int, impl: str) -> tuple[Any, ...]:
    """Multiply a by the transpose of w into bf16, as a linear layer does, from fp8.

    ``fp8_tensorwise`` has one scale for each matrix, ``fp8_rowwise`` one for each row of a and of
    w; both are e4m3 with fast accumulation, the setting of float8 training. The operands are
    quantised outside the launch, as weights are ahead of time and activations in the kernel
    before: the time is the multiplication's alone. The rows of a differ in size by up to 16, as
    activations do, so that a scale that lands on another row shows. ``gemm`` says what bf16 takes.
    """
    a = rng.randn(m, k, dtype="bfloat16")
    a *= 0.25 + 3.75 * rng.rand(m, 1, dtype="bfloat16")
    w = rng.randn(n, k, dtype="bfloat16")
    both = (quantise(x, 1 if impl == "fp8_rowwise" else len(x), k) for x in (a, w))
    (a, a_scale), (w, w_scale) = both
    return a, a_scale, w, w_scale, rng.empty(m, n, dtype="bfloat16")


@fp8_gemm.reference
def _reference(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> Any:
    """Multiply what the values stand for, so that only the multiplication is judged."""
    return matmul64(a.double() * a_scale.double(), (w.double() * w_scale.double()).t())


@fp8_gemm.wrong
def _wrong(a: Any, scale: Any, *others: Any, impl: str) -> None:
    """Forget the scale of a, or give its rows that of the next."""
    _multiply(a, scale / scale if impl == "fp8_tensorwise" else scale.roll(-1, 0), *others)


def _multiply(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> None:
    scales = {"scale_a": a_scale, "scale_b": w_scale.t()}
    torch._scaled_mm(a, w.t(), **scales, out_dtype=out.dtype, use_fast_accum=True, out=out)  # noqa: SLF001


def _faster(by: float, source: str) -> Beats:
    than = "compute.gemm[dtype=bf16,m={m},n={n},k={k},impl=torch]"
    return Beats(than, by, source, {"m": 8192}, (arch("sm_90"),))


fp8_gemm.impl(
    _multiply,
    name="fp8_tensorwise",
    beats=_faster(
        1.5,
        "stas00/ml-engineering, maximum achievable matmul TFLOP/s: H100 1402.6 in fp8 against "
        "794.5 in bf16, a ratio of 1.77 each at its own best shape",
    ),
)
fp8_gemm.impl(
    _multiply,
    name="fp8_rowwise",
    beats=_faster(
        1.3,
        "pytorch/ao documentation: fp8 rowwise prefill of Llama-3.1-8B on H100 is 1.46 times as "
        "fast as bf16, casts and attention included",
    ),
)
