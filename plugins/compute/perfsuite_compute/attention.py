"""Attention, forward: scores written to memory, against kernels that keep them on the chip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
# Triton's tile is for tensor cores in bf16; tf32 would not reach fp32's precision.
_IMPLS = {"bf16": ("math", "sdpa", "cudnn", "triton"), "fp32": ("math", "sdpa")}
_WIDTH, _LENGTH = 128, 4096
_REFERENCE_BYTES = 2**30


def _is_asked(dtype: str, b: int, h: int, s: int, d: int, *, causal: bool, impl: str) -> bool:
    # Other widths by the libraries alone, at one length: Triton's tile is for a width of 128.
    is_usual = d == _WIDTH or (s == _LENGTH and impl != "triton")
    return impl in _IMPLS[dtype] and is_usual


def _work(dtype: str, b: int, h: int, s: int, d: int, *, causal: bool, impl: str) -> Work:
    size = _DTYPES[dtype][1]
    pairs = s * (s + 1) // 2 if causal else s * s
    return Work(
        read_bytes=3 * size * b * h * s * d,
        write_bytes=size * b * h * s * d,
        # Two products, each a multiplication and an addition for every pair of query and key.
        flops=4 * b * h * pairs * d,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, b: int, h: int, s: int, d: int, *, causal: bool, impl: str) -> int:
    size = _DTYPES[dtype][1]
    scores = b * h * s * s * size if impl == "math" else 0
    reference = 8 * s * s * _heads_at_once(b * h, s)
    return (5 * size + 8) * b * h * s * d + 3 * scores + 3 * reference


def _heads_at_once(heads: int, s: int) -> int:
    return min(heads, max(1, _REFERENCE_BYTES // (8 * s * s)))


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "b": [4],
        "h": [32],
        "s": [_LENGTH],
        "d": [_WIDTH],
        "causal": [False, True],
        "impl": ["math", "sdpa", "cudnn", "triton"],
    },
    smoke={"dtype": ["fp32", "bf16"], "b": [1], "h": [8], "s": [512]},
    full={"s": [2048, _LENGTH, 8192], "d": [64, _WIDTH, 256]},
    only=_is_asked,
    full_only=[
        {"s": [512], "causal": [False]},
        {"s": [512], "impl": ["math", "cudnn"]},
        {"causal": [False], "impl": ["math", "sdpa"]},
    ],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        cuda().when(dtype="bf16"),
        arch("sm_80+").when(dtype="bf16"),
        arch("sm_90+").when(impl="triton"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["attention", "fusion", "tensor-cores"],
    source="attention APIs and FlashAttention: chapter 8 of the book",
)
def attention(
    ctx: Any, dtype: str, b: int, h: int, s: int, d: int, *, causal: bool, impl: str
) -> Workload:
    """Attend b x h heads of s queries to s keys and values of width d.

    ``math`` is the formula as it is written, with s x s scores for each head in memory. ``sdpa``
    is PyTorch's fused attention, held to its own kernels: FlashAttention-2, and the
    memory-efficient one for fp32 on a GPU, which the former does not take. ``cudnn`` is the
    vendor's kernel through the same call. ``triton`` is FlashAttention-2's forward pass; what it
    lacks against ``cudnn`` (about a seventh on an H200, of causal heads a tenth) is warp
    specialisation: a block's softmax and its products take turns, and only other blocks' overlap.
    With ``causal`` a query sees the keys up to its own, and the work is that of the pairs it sees.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    name = _DTYPES[dtype][0]

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        return (
            *(rng.randn(b, h, s, d, dtype=name) for _ in range(3)),
            rng.empty(b, h, s, d, dtype=name),
        )

    return Workload(
        fn=_launch_of(impl, causal=causal),
        make_inputs=make_inputs,
        reference=_reference_of(causal=causal),
        wrong=_launch_math(hidden_from=2) if causal else _launch_math(scale=1.0),
    )


def _launch_of(impl: str, *, causal: bool) -> Callable[..., Any]:
    if impl == "math":
        return _launch_math(hidden_from=1 if causal else None)
    if impl in ("sdpa", "cudnn"):
        return _launch_sdpa(impl, causal=causal)
    from perfsuite_compute.attention_triton import attention as kernel

    def launch(q: Any, k: Any, v: Any, out: Any) -> None:
        kernel(q, k, v, out, causal=causal)

    return launch


def _launch_math(
    *, hidden_from: int | None = None, scale: float | None = None
) -> Callable[..., Any]:
    """Return the plain formula; a query sees no key ``hidden_from`` or more after its own.

    ``hidden_from=2`` (a mask off by one) and ``scale=1.0`` (no scale) are the negative controls.
    """
    import torch

    def launch(q: Any, k: Any, v: Any, out: Any) -> Any:
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = q @ k.transpose(-2, -1) * factor
        if hidden_from is not None:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
            scores = scores.masked_fill(ones.triu(hidden_from), -math.inf)
        return scores.softmax(dim=-1) @ v

    return launch


def _launch_sdpa(impl: str, *, causal: bool) -> Callable[..., Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    if impl == "cudnn":
        kernels = [SDPBackend.CUDNN_ATTENTION]

    def launch(q: Any, k: Any, v: Any, out: Any) -> Any:
        with sdpa_kernel(kernels):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return launch


def _reference_of(*, causal: bool) -> Callable[..., Any]:
    """Return attention in float64, some heads at a time."""
    import torch

    def reference(q: Any, k: Any, v: Any, out: Any) -> Any:
        s, d = q.shape[-2:]
        result = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        flat = [x.reshape(-1, s, d) for x in (q, k, v, result)]
        step = _heads_at_once(flat[0].shape[0], s)
        later = (
            torch.arange(s, device=q.device)[None, :] > torch.arange(s, device=q.device)[:, None]
        )
        for start in range(0, flat[0].shape[0], step):
            part = slice(start, start + step)
            scores = torch.bmm(flat[0][part].double(), flat[1][part].double().mT).div_(d**0.5)
            if causal:
                scores.masked_fill_(later, -math.inf)
            weights = scores.sub_(scores.logsumexp(-1, keepdim=True)).exp_()
            torch.bmm(weights, flat[2][part].double(), out=flat[3][part])
        return result

    return reference


# Quoted for optimised baselines on A100; third-party charts of H100, fp16, head 128 have 139
# TFLOP/s for standard attention and 370 for FlashAttention-2, a ratio of 2.7.
_PAPER = (
    "FlashAttention-2 (arXiv:2307.08691), abstract: FlashAttention's speed-up is 2-4 times over "
    "optimised baselines; the lower end is asked for"
)
CASES: tuple[perfsuite.Case | Claim, ...] = (
    attention,
    *(
        Claim(
            name=f"attention_{impl}",
            case="attention",
            faster={"impl": impl},
            than={"impl": "math"},
            by=2.0,
            at={
                "dtype": ("bf16",),
                "b": (4,),
                "h": (32,),
                "s": (2048, _LENGTH, 8192),
                "d": (_WIDTH,),
            },
            needs=(cuda(),),
            source=_PAPER,
        )
        for impl in ("sdpa", "cudnn", "triton")
    ),
    *(
        Claim(
            name=f"attention_memory_{impl}",
            case="attention",
            faster={"impl": impl},
            than={"impl": "math"},
            by=20.0,
            metric="peak_bytes",
            at={"dtype": ("bf16",), "b": (4,), "h": (32,), "s": (_LENGTH, 8192), "d": (_WIDTH,)},
            needs=(cuda(),),
            source="README of Dao-AILab/flash-attention: 10 times less memory than standard "
            "attention at a length of 2048, 20 times at 4096",
        )
        # triton's result is among its inputs, and so counted for nothing.
        for impl in ("sdpa", "cudnn")
    ),
)
