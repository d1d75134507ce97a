"""Attention, backward: the gradients of queries, keys and values, from scores found anew."""

import itertools
import math
from functools import cache, partial
from typing import Any

from perfsuite import arch, cuda, operator, package
from perfsuite.gpu import DTYPES, torch
from perfsuite_compute.attention import flex, hidden

_LARGE: dict[str, Any] = {"dtype": "bf16", "b": 2, "h": 16}


@operator(
    nightly=[
        {**_LARGE, "s": 1024, "d": 128},
        {**_LARGE, "s": 8192, "d": 128, "impl": ["sdpa", "cudnn", "flex"]},
    ],
    full=[
        {**_LARGE, "s": 1024, "d": [64, 128]},
        {**_LARGE, "s": [1024, 8192], "d": [64, 128, 256], "impl": ["sdpa", "cudnn"]},
    ],
    needs=[cuda(), arch("sm_80+")],
    # Five products for every pair of query and key that is seen, where forward has two: the
    # scores anew, the gradients of values and of weights, and of queries and keys from it.
    flops=lambda *, b, h, s, d, **_: 10 * b * h * (s * (s + 1) // 2) * d,
    rate_dtype=lambda *, dtype: dtype,
    # Five inputs, three results, what a kernel sums in fp32, and the float64 reference; of the
    # formula four arrays of scores live at a time, and two of them in fp32.
    memory_bytes=lambda b, h, s, d, impl, **_: (
        b * h * s * (60 * d + 12 * s * (impl == "math")) + 6 * 8 * s * s
    ),
    tags=["attention", "fusion", "tensor-cores"],
    source="FlashAttention-2 (arXiv:2307.08691), algorithm 2 and section 4.1: backward is 2.5 "
    "times the operations of forward, with five matrix products instead of two",
)
def attention_backward(rng: Any, *, dtype: str, b: int, h: int, s: int, d: int, impl: str) -> Any:
    """Take the gradients of q, k and v of causal attention, given that of its result.

    Forward is not part of the launch: its result and each query's normaliser are inputs. ``math``
    is the gradient as it is written, with s x s scores, weights and their gradients in memory.
    ``sdpa`` is FlashAttention-2's backward pass, ``cudnn`` the vendor's, by the operators that
    autograd calls; both find the scores anew, tile by tile. ``flex`` is that of flex_attention by
    torch.compile, as autograd calls it: what forward kept is an input. Keys and values take sums
    over the queries, and queries over the keys: a kernel that walks one way adds the other up in
    memory.
    Of 8192 queries or width 256 ``math`` is not asked: its scores in bf16 are too coarse, and
    single gradients came out wrong on an H200 and an H100. On an H200 ``cudnn`` takes 2.54 ms of
    8192 queries of width 128 (67 % of the tensor cores' rate), ``sdpa`` 4.85.
    """
    q, k, v, grad = (rng.randn(b, h, s, d, dtype=DTYPES[dtype]) for _ in range(4))
    # Few queries see the last keys, whose gradients are small: a last tile left out must show.
    grad[:, :, -8:] *= 32
    aten = torch.ops.aten
    if impl == "math":
        scores = (q.float() @ k.float().mT).div_(math.sqrt(d))
        normaliser = scores.masked_fill_(hidden(s, q.device), -math.inf).logsumexp(-1)
        out = scores.sub_(normaliser[..., None]).exp_() @ v.float()
        return q, k, v, grad, out.to(q.dtype), normaliser
    if impl == "flex":
        return q, k, v, grad, *_kept_by_flex(q, k, v)
    if impl == "sdpa":
        found = aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)  # noqa: SLF001
    else:
        found = aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
            q, k, v, None, compute_log_sumexp=True, is_causal=True
        )
    return q, k, v, grad, found[0], found[1], found[6], found[7]


@cache
def _flex_forward(s: int, place: Any) -> Any:
    from torch._functorch import config

    # Launches walk back again and again, so that nothing that was kept may be overwritten.
    config.donated_buffer = False
    return flex(lambda b, h, i, j: j <= i, s, s, place, return_lse=True)


def _kept_by_flex(q: Any, k: Any, v: Any) -> Any:
    """Return the result, its normaliser, what to walk back from and to, and what forward kept."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out, normaliser = _flex_forward(q.shape[2], q.device)(*leaves)
    return out.detach(), normaliser.detach(), out, *leaves, *out.grad_fn.saved_tensors


@attention_backward.reference
def _reference(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> tuple[Any, ...]:
    """Return the gradients in float64 by autograd over softmax, one head at a time."""
    results = tuple(torch.empty(q.shape, dtype=torch.float64, device=q.device) for _ in range(3))
    later = hidden(q.shape[2], q.device)
    for at in itertools.product(*map(range, q.shape[:2])):
        leaves = [x[at].double().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            scores = (leaves[0] @ leaves[1].mT / q.shape[-1] ** 0.5).masked_fill(later, -math.inf)
            out = scores.softmax(-1) @ leaves[2]
        found = torch.autograd.grad(out, leaves, grad[at].double())
        for result, each in zip(results, found, strict=True):
            result[at] = each
    return results


@attention_backward.impl
def _math(
    q: Any, k: Any, v: Any, grad: Any, out: Any, normaliser: Any, *_: Any, hides: bool = True
) -> Any:
    scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.mT).float().mul_(scale).sub_(normaliser.view(*q.shape[:-1], 1))
    if hides:
        scores.masked_fill_(hidden(q.shape[-2], q.device), -math.inf)
    weights = scores.exp_()
    # What all weights of a query have in common: their own mean of what arrives.
    common = (grad.float() * out.float()).sum(-1, keepdim=True)
    dv = weights.to(q.dtype).mT @ grad
    inner = (grad @ v.mT).float().sub_(common).mul_(weights).mul_(scale).to(q.dtype)
    return inner @ k, inner.mT @ q, dv


attention_backward.wrong(partial(_math, hides=False))  # forgets the mask


@attention_backward.impl
def _sdpa(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> Any:
    out, normaliser, seed, offset = kept
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
        grad, q, k, v, out, normaliser, None, None, *[q.shape[2]] * 2, 0.0, True, seed, offset
    )


@attention_backward.impl
def _cudnn(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(  # noqa: SLF001
        grad, q, k, v, *kept, None, None, None, *[q.shape[2]] * 2, 0.0, True
    )


@attention_backward.impl(needs=[package("triton")])
def _flex(q: Any, k: Any, v: Any, grad: Any, *kept: Any) -> Any:
    out, *leaves = kept[2:6]
    return torch.autograd.grad(out, leaves, grad, retain_graph=True)
