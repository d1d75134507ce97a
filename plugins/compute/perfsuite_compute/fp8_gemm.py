"""Matrix multiplication in 8-bit floating point: what halving the operand's bits is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

_LARGEST = 448.0  # of float8_e4m3fn
# Hopper's fp8 tensor cores keep about 14 bits while they accumulate (DeepSeek-V3 report, section
# 3.3.2: errors near 2 % at k = 4096), so bf16's own limit of 1e-2 is too tight for fp8.
_FP8_TOLERANCE = 2e-2
# Smaller multiplications do not fill a large GPU for long.
_CEILING_FROM = 4096


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    return m == n == k


def _work(m: int, n: int, k: int, impl: str) -> Work:
    size = 2 if impl == "bf16" else 1
    scales = {"bf16": 0, "fp8_tensorwise": 2, "fp8_rowwise": m + n}[impl]
    return Work(
        read_bytes=size * (m * k + k * n) + 4 * scales,
        write_bytes=2 * m * n,
        flops=2 * m * n * k,
        rate_dtype="bf16" if impl == "bf16" else "fp8",
    )


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_compute.reference import matmul_bytes

    # The reference also holds both operands in float64, and 2-byte outputs stand beside it.
    return 10 * (m * k + k * n) + 4 * m * n + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [4096, 8192],
        "n": [4096, 8192],
        "k": [4096, 8192],
        "impl": ["bf16", "fp8_tensorwise", "fp8_rowwise"],
    },
    smoke={"m": [2048], "n": [2048], "k": [2048]},
    only=_is_asked,
    full_only=[{"m": [2048, 4096], "impl": ["bf16", "fp8_tensorwise"]}],
    needs=(package("torch"), cuda(), arch("sm_89+")),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["fp8", "tensor-cores"],
    ceilings={"fp8": lambda m, impl, **_: m >= _CEILING_FROM and impl != "bf16"},
    source="FP8 and the Transformer Engine: chapter 6 of the book",
)
def fp8_gemm(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply a by the transpose of w into bf16, as a linear layer does, from bf16 or fp8.

    ``fp8_tensorwise`` has one scale for each matrix, ``fp8_rowwise`` one for each row of a and of
    w; both are e4m3 with fast accumulation, the setting of float8 training. The operands are
    quantised outside the launch, as weights are ahead of time and activations in the kernel
    before: the time is the multiplication's alone. The rows of a differ in size by up to 16, as
    activations do, so that a scale that lands on another row shows.
    """
    launch = {"bf16": _launch_bf16}.get(impl, _launch_fp8)
    quantise = {"fp8_tensorwise": _quantise, "fp8_rowwise": _quantise_rows}.get(impl)

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        a = rng.randn(m, k, dtype="bfloat16")
        a *= 0.25 + 3.75 * rng.rand(m, 1, dtype="bfloat16")
        w = rng.randn(n, k, dtype="bfloat16")
        out = rng.empty(m, n, dtype="bfloat16")
        return (a, w, out) if quantise is None else (*quantise(a), *quantise(w), out)

    return Workload(
        fn=launch,
        make_inputs=make_inputs,
        reference=_reference_bf16 if quantise is None else _reference_fp8,
        wrong=_WRONG[impl],
        tolerance=None if quantise is None else _FP8_TOLERANCE,
    )


def _quantise(x: Any) -> tuple[Any, Any]:
    """Return x in e4m3 and the one factor that undoes its scaling."""
    scale = x.abs().max().float() / _LARGEST
    return _narrow(x.float() / scale), scale


def _quantise_rows(x: Any) -> tuple[Any, Any]:
    """Return x in e4m3 and a column of factors, one for each row."""
    scale = x.abs().amax(dim=1, keepdim=True).float() / _LARGEST
    return _narrow(x.float() / scale), scale


def _narrow(x: Any) -> Any:
    import torch

    # Rounding may carry a value just past the largest, which e4m3 would turn into NaN.
    return x.clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)


def _launch_bf16(a: Any, w: Any, out: Any) -> None:
    import torch

    torch.mm(a, w.t(), out=out)


def _launch_fp8(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> None:
    import torch

    torch._scaled_mm(  # noqa: SLF001
        a,
        w.t(),
        scale_a=a_scale,
        scale_b=w_scale.t() if w_scale.dim() else w_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
        out=out,
    )


def _reference_bf16(a: Any, w: Any, out: Any) -> Any:
    from perfsuite_compute.reference import matmul

    return matmul(a, w.t())


def _reference_fp8(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> Any:
    """Multiply what the fp8 values stand for, so that only the multiplication is judged."""
    from perfsuite_compute.reference import matmul

    return matmul(a.double() * a_scale.double(), (w.double() * w_scale.double()).t())


def _without_last_step(a: Any, w: Any, out: Any) -> None:
    """Leave out the last 64 of k, as a loop that rounds its count down does."""
    _launch_bf16(a[:, :-64], w[:, :-64], out)


def _without_scale(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> None:
    """Forget the scale of a."""
    _launch_fp8(a, a_scale / a_scale, w, w_scale, out)


def _with_scale_of_next_row(a: Any, a_scale: Any, w: Any, w_scale: Any, out: Any) -> None:
    """Give each row of a the scale of the row after it."""
    _launch_fp8(a, a_scale.roll(-1, 0), w, w_scale, out)


_WRONG: dict[str, Callable[..., None]] = {
    "bf16": _without_last_step,
    "fp8_tensorwise": _without_scale,
    "fp8_rowwise": _with_scale_of_next_row,
}

CASES: tuple[perfsuite.Case | Claim, ...] = (
    fp8_gemm,
    Claim(
        name="fp8_tensorwise",
        case="fp8_gemm",
        faster={"impl": "fp8_tensorwise"},
        than={"impl": "bf16"},
        by=1.5,
        at={"m": (8192,)},
        needs=(cuda(), arch("sm_90")),
        source="stas00/ml-engineering, maximum achievable matmul TFLOP/s: H100 1402.6 in fp8 "
        "against 794.5 in bf16, a ratio of 1.77 each at its own best shape",
    ),
    Claim(
        name="fp8_rowwise",
        case="fp8_gemm",
        faster={"impl": "fp8_rowwise"},
        than={"impl": "bf16"},
        by=1.3,
        at={"m": (8192,)},
        needs=(cuda(), arch("sm_90")),
        source="pytorch/ao documentation: fp8 rowwise prefill of Llama-3.1-8B on H100 is 1.46 "
        "times as fast as bf16, casts and attention included",
    ),
)
