"""Attention, backward: the gradients of queries, keys and values, from scores found anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
_REFERENCE_BYTES = 2**30
_SHORT, _LONG = 1024, 8192


def _work(dtype: str, b: int, h: int, s: int, d: int, impl: str) -> Work:
    size, pairs = _DTYPES[dtype][1], s * (s + 1) // 2
    return Work(
        # Queries, keys, values, the result and its gradient; a normaliser a query, in fp32.
        read_bytes=(5 * size * d + 4) * b * h * s,
        write_bytes=3 * size * b * h * s * d,
        # Five products for every pair of query and key that is seen, where forward has two: the
        # scores anew, the gradients of values and of weights, and of queries and keys from it.
        flops=10 * b * h * pairs * d,
        rate_dtype=dtype,
    )


def _is_asked(s: int, impl: str, **_: object) -> bool:
    return s < _LONG or impl != "math"


def _memory_bytes(dtype: str, b: int, h: int, s: int, d: int, impl: str) -> int:
    size = _DTYPES[dtype][1]
    # Of the formula four arrays of scores live at a time, and two of them in fp32.
    scores = b * h * s * s * (2 * size + 8) if impl == "math" else 0
    reference = 6 * 8 * s * s * _heads_at_once(b * h, s)
    # Five inputs, three results, what a kernel sums in fp32, and the float64 reference.
    return (8 * size + 4 * 3 + 8 * 4) * b * h * s * d + scores + reference


def _heads_at_once(heads: int, s: int) -> int:
    return min(heads, max(1, _REFERENCE_BYTES // (8 * s * s)))


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "b": [2],
        "h": [16],
        "s": [_SHORT, _LONG],
        "d": [64, 128, 256],
        "impl": ["math", "sdpa", "cudnn"],
    },
    only=_is_asked,
    full_only=[{"dtype": ["bf16"]}],
    needs=(package("torch"), cuda(), arch("sm_80+")),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["attention", "fusion", "tensor-cores"],
    source="FlashAttention-2 (arXiv:2307.08691), algorithm 2 and section 4.1: backward is 2.5 "
    "times the operations of forward, with five matrix products instead of two",
)
def attention_backward(ctx: Any, dtype: str, b: int, h: int, s: int, d: int, impl: str) -> Workload:
    """Take the gradients of q, k and v of causal attention, given that of its result.

    Forward is not part of the launch: its result and each query's normaliser are inputs. ``math``
    is the gradient as it is written, with s x s scores, weights and their gradients in memory.
    ``sdpa`` is FlashAttention-2's backward pass, ``cudnn`` the vendor's, by the operators that
    autograd calls; both find the scores anew, tile by tile. Keys and values take sums over the
    queries, and queries over the keys: a kernel that walks one way adds the other up in memory.
    Of 8192 queries ``math`` is not asked: its scores in bf16 are too coarse for gradients that are
    means over so many keys, and on an H200 it came out wrong. There ``cudnn`` takes 2.54 ms of
    width 128 (67 % of the tensor cores' rate), ``sdpa`` 4.85.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    name = _DTYPES[dtype][0]
    forward, backward = {"math": _math, "sdpa": _flash, "cudnn": _cudnn}[impl]()

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        q, k, v, grad = (rng.randn(b, h, s, d, dtype=name) for _ in range(4))
        return q, k, v, grad, *forward(q, k, v)

    return Workload(
        fn=backward,
        make_inputs=make_inputs,
        reference=_reference,
        wrong=lambda *inputs: _gradients(*inputs, hides=False),
    )


Way = Callable[..., tuple[Any, ...]]


def _math() -> tuple[Way, Way]:
    return _forward, _gradients


def _forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Return the result and the logarithm of each query's normaliser, a few heads at a time."""
    import torch

    s, d = q.shape[-2:]
    out, normaliser = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    step = _heads_at_once(q.shape[0] * q.shape[1], s)
    flat = [x.view(-1, s, d) for x in (q, k, v, out)]
    for start in range(0, flat[0].shape[0], step):
        part = slice(start, start + step)
        scores = (flat[0][part].float() @ flat[1][part].float().mT).div_(math.sqrt(d))
        scores.masked_fill_(_later(s, q.device), -math.inf)
        each = scores.logsumexp(-1)
        normaliser.view(-1, s)[part] = each
        flat[3][part] = scores.sub_(each[..., None]).exp_() @ flat[2][part].float()
    return out, normaliser


def _later(s: int, place: Any) -> Any:
    """Return which keys come after each query."""
    import torch

    index = torch.arange(s, device=place)
    return index[None, :] > index[:, None]


def _gradients(
    q: Any, k: Any, v: Any, grad: Any, out: Any, normaliser: Any, *_: Any, hides: bool = True
) -> tuple[Any, Any, Any]:
    """Return the gradients as they are written; without ``hides`` the mask is forgotten."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.mT).float().mul_(scale).sub_(normaliser.view(*q.shape[:-1], 1))
    if hides:
        scores.masked_fill_(_later(q.shape[-2], q.device), -math.inf)
    weights = scores.exp_()
    # What all weights of a query have in common: their own mean of what arrives.
    common = (grad.float() * out.float()).sum(-1, keepdim=True)
    dv = weights.to(q.dtype).mT @ grad
    inner = (grad @ v.mT).float().sub_(common).mul_(weights).mul_(scale).to(q.dtype)
    return inner @ k, inner.mT @ q, dv


def _flash() -> tuple[Way, Way]:
    import torch

    aten = torch.ops.aten

    def forward(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        found = aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)  # noqa: SLF001
        return found[0], found[1], found[6], found[7]

    def backward(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> tuple[Any, ...]:
        out, normaliser, seed, offset = kept
        found: tuple[Any, ...] = aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
            grad, q, k, v, out, normaliser, None, None, *[q.shape[2]] * 2, 0.0, True, seed, offset
        )
        return found

    return forward, backward


def _cudnn() -> tuple[Way, Way]:
    import torch

    aten = torch.ops.aten

    def forward(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        found = aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
            q, k, v, None, compute_log_sumexp=True, is_causal=True
        )
        return found[0], found[1], found[6], found[7]

    def backward(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_cudnn_attention_backward(  # noqa: SLF001
            grad, q, k, v, *kept, None, None, None, *[q.shape[2]] * 2, 0.0, True
        )
        return found

    return forward, backward


def _reference(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> tuple[Any, ...]:
    """Return the gradients in float64 by autograd over softmax, some heads at a time."""
    import torch

    s, d = q.shape[-2:]
    results = [torch.empty(q.shape, dtype=torch.float64, device=q.device) for _ in range(3)]
    flat = [x.reshape(-1, s, d) for x in (q, k, v, grad)]
    later = _later(s, q.device)
    step = _heads_at_once(flat[0].shape[0], 2 * s)
    for start in range(0, flat[0].shape[0], step):
        part = slice(start, start + step)
        leaves = [x[part].double().requires_grad_() for x in flat[:3]]
        with torch.enable_grad():
            scores = (leaves[0] @ leaves[1].mT / d**0.5).masked_fill(later, -math.inf)
            out = scores.softmax(-1) @ leaves[2]
        found = torch.autograd.grad(out, leaves, flat[3][part].double())
        for result, each in zip(results, found, strict=True):
            result.view(-1, s, d)[part] = each
    return tuple(results)


CASES = (attention_backward,)
