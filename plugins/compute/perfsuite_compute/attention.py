"""Attention, forward: scores written to memory, against kernels that keep them on the chip."""

import itertools
import math
from functools import partial
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

_SMALL: dict[str, Any] = {"b": 1, "h": 8, "s": 512, "d": 128}
_LARGE: dict[str, Any] = {"dtype": "bf16", "b": 4, "h": 32}
_BY_LIBRARIES = ["math", "sdpa", "cudnn"]
_SCORE_BYTES = {"math": 12, "sdpa_math": 16}
_ON_CPU = ["math", "sdpa", "dispatched", "sdpa_math"]
_AT_ANY_LENGTH = [*_BY_LIBRARIES, "dispatched", "triton"]
_FASTER = Beats(
    "math",
    2.0,
    # Quoted for optimised baselines on A100; third-party charts of H100, fp16, head 128 have 139
    # TFLOP/s for standard attention and 370 for FlashAttention-2, a ratio of 2.7.
    "FlashAttention-2 (arXiv:2307.08691), abstract: FlashAttention's speed-up is 2-4 times over "
    "optimised baselines; the lower end is asked for",
    at={"b": 4, "s": (2048, 4096, 8192), "d": 128},
)
# triton's result is among its inputs, and so counted for nothing.
_SMALLER = Beats(
    "math",
    20.0,
    "README of Dao-AILab/flash-attention: 10 times less memory than standard attention at a "
    "length of 2048, 20 times at 4096",
    at={"b": 4, "s": (4096, 8192), "d": 128},
    metric="peak_bytes",
    name="attention_memory",
)


# Triton's tile is for a width of 128, and for tensor cores in bf16: tf32 would not reach fp32's
# precision.
@operator(
    smoke=[
        {"dtype": ["fp32", "bf16"], **_SMALL, "causal": True, "impl": "sdpa"},
        {"dtype": "bf16", **_SMALL, "causal": True, "impl": "triton"},
    ],
    nightly=[
        {**_LARGE, "s": 4096, "d": 128, "causal": True},
        {**_LARGE, "s": 4096, "d": 128, "causal": False, "impl": ["cudnn", "dispatched", "triton"]},
    ],
    full=[
        {**_LARGE, "s": [2048, 4096], "d": 128, "causal": [False, True]},
        {**_LARGE, "s": 8192, "d": 128, "causal": [False, True], "impl": _AT_ANY_LENGTH},
        {**_LARGE, "s": 4096, "d": [64, 256], "causal": [False, True], "impl": _BY_LIBRARIES},
        {"dtype": "bf16", **_SMALL, "causal": [False, True]},
        {"dtype": "fp32", **_SMALL, "causal": [False, True], "impl": _ON_CPU},
    ],
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    # Two products, each a multiplication and an addition for every pair of query and key.
    flops=lambda *, b, h, s, d, causal, **_: (
        4 * b * h * d * (s * (s + 1) // 2 if causal else s * s)
    ),
    rate_dtype=lambda *, dtype: dtype,
    # Scores of all heads, and in float64 of one.
    memory_bytes=lambda dtype, b, h, s, d, impl, **_: (
        b * h * s * (d * (18 if dtype == "bf16" else 28) + _SCORE_BYTES.get(impl, 0) * s)
        + 32 * s * s
    ),
    tags=["attention", "fusion", "tensor-cores"],
    source="attention APIs and FlashAttention: chapter 8 of the book",
)
def attention(rng: Any, *, dtype: str, b: int, h: int, s: int, d: int, causal: bool) -> Any:
    """Attend b x h heads of s queries to s keys and values of width d.

    ``math`` is the formula as it is written, with s x s scores for each head in memory. ``sdpa``
    is PyTorch's fused attention, held to its own kernels: FlashAttention-2, and the
    memory-efficient one for fp32 on a GPU, which the former does not take. ``cudnn`` is the
    vendor's kernel through the same call. ``dispatched`` is the call as people write it, with the
    kernel that PyTorch chooses. ``sdpa_math`` is what it falls back to: the formula, of bf16 too in
    fp32. ``triton`` is FlashAttention-2's forward pass; what it lacks against ``cudnn`` (about a
    seventh on an H200, of causal heads a tenth) is warp specialisation: a block's softmax and its
    products take turns, and only other blocks' overlap.
    With ``causal`` a query sees the keys up to its own, and the work is that of the pairs it sees.
    """
    given = (rng.randn(b, h, s, d, dtype=DTYPES[dtype]) for _ in range(3))
    return *given, rng.empty(b, h, s, d, dtype=DTYPES[dtype])


def hidden(s: int, place: Any, first: int = 1) -> Any:
    """Return which keys a query does not see: those that are ``first`` or more after it."""
    return torch.ones(s, s, dtype=torch.bool, device=place).triu(first)


def attend64(q: Any, k: Any, v: Any, out_of_sight: Any, bend: Any = None) -> Any:
    """Return attention in float64, one head at a time, with its scores bent."""
    result = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for at in itertools.product(*map(range, q.shape[:2])):
        scores = (q[at].double() @ k[at].double().mT).div_(q.shape[-1] ** 0.5)
        scores = bend(scores) if bend else scores
        scores.masked_fill_(out_of_sight, -math.inf)
        weights = scores.sub_(scores.logsumexp(-1, keepdim=True)).exp_()
        torch.mm(weights, v[at].double(), out=result[at])
    return result


def flex(rule: Any, queries: int, keys: int, place: Any, **how: Any) -> Any:
    """Return flex_attention by torch.compile under a mask, its blocks found here and now."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(rule, None, None, queries, keys, device=place)
    return compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, **how))


@attention.reference
def _reference(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> Any:
    s = q.shape[2]
    return attend64(q, k, v, hidden(s, q.device, 1 if causal else s))


@attention.impl
def _math(q: Any, k: Any, v: Any, out: Any, *, causal: bool, first: int = 1) -> Any:
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(hidden(q.shape[2], q.device, first), -math.inf)
    return scores.softmax(dim=-1) @ v


@attention.wrong
def _masks_off_by_one_or_forgets_scale(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> Any:
    return _math(q if causal else q * q.shape[-1] ** 0.5, k, v, out, causal=causal, first=2)


def _fused(*kernels: str) -> Any:
    def build(ctx: Any, *, causal: bool) -> Any:
        of = torch.nn.attention
        allowed = [getattr(of.SDPBackend, each) for each in kernels]

        def launch(q: Any, k: Any, v: Any, out: Any) -> Any:
            with of.sdpa_kernel(allowed):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return launch

    return build


attention.impl(
    _fused("FLASH_ATTENTION", "EFFICIENT_ATTENTION"), name="sdpa", beats=[_FASTER, _SMALLER]
)
attention.impl(_fused("CUDNN_ATTENTION"), name="cudnn", beats=[_FASTER, _SMALLER])
attention.impl(_fused("MATH"), name="sdpa_math")


@attention.impl(beats=[_FASTER, _SMALLER])
def _dispatched(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


@attention.impl(needs=[*TRITON, arch("sm_90+")], beats=_FASTER)
def _triton(ctx: Any, *, causal: bool) -> Any:
    return partial(Later("perfsuite_compute.attention_triton").attention, causal=causal)
