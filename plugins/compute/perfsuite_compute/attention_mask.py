"""Attention under masks: all scores computed and most thrown away, against blocks left out."""

import math
from functools import partial
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, torch
from perfsuite_compute.attention import attend64, flex

D = 128
# A query sees this share of the keys before it; documents begin at these hundredths.
WINDOW_PARTS = 8
CUTS = (0, 6, 21, 26, 44, 56, 81, 89)
# Gemma 2 has 50, on scores of that size. Ours are of size 1, so that bf16's rounding of them is
# not what is checked.
CAP = 2.0
_LARGE: dict[str, Any] = {"dtype": "bf16", "h": 16}
_SOURCE = (
    "FlexAttention (arXiv:2412.05496): 5.5 to 8 times as fast as SDPA given a mask; counted at "
    "8192, 12 % (window) and 8 % (document) of all pairs are left; 5 is asked for"
)
_WINDOW, _DOCUMENT = (
    Beats("masked", 5.0, _SOURCE, {"mask": mask, "s": 8192}, name=mask)
    for mask in ("window", "document")
)


@operator(
    nightly=[
        {**_LARGE, "mask": "window", "s": 8192},
        {**_LARGE, "mask": "window", "s": 8191, "impl": "triton"},
        {**_LARGE, "mask": "document", "s": 8192, "impl": ["masked", "triton"]},
        {**_LARGE, "mask": "softcap", "s": 4096, "impl": "triton"},
    ],
    full=[
        {**_LARGE, "mask": ["window", "document"], "s": 16384},
        # Scores of this length are 8.6 GB.
        {**_LARGE, "mask": "softcap", "s": 16384, "impl": ["flex", "triton"]},
        {**_LARGE, "mask": "softcap", "s": 4096, "impl": "masked"},
        {"dtype": "fp32", "mask": "window", "h": 2, "s": 256, "impl": "masked"},
    ],
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    # Of the pairs that count: from the first key that a query sees to its own.
    flops=lambda *, mask, h, s: (
        4 * h * D * (s * (s + 1) // 2 - int(first_keys(mask, s, "cpu").sum()))
    ),
    rate_dtype=lambda *, dtype: dtype,
    memory_bytes=lambda dtype, mask, h, s, impl: (
        h * s * (D * 28 + 16 * s * ((mask, impl) == ("softcap", "masked"))) + 36 * s * s
    ),
    tags=["attention", "fusion", "tensor-cores"],
    source="attention variants: chapter 8 of the book; FlexAttention (arXiv:2412.05496)",
)
def attention_mask(rng: Any, *, dtype: str, mask: str, h: int, s: int) -> tuple[Any, ...]:
    """Attend causally to the last s/8 keys, to one's own document, or with scores bent to +-2.

    ``masked`` gives PyTorch's fused attention an s x s mask, for which it computes every score;
    of ``softcap``, which it does not know, it is the formula with scores in memory. ``flex`` is
    flex_attention through torch.compile, with the mask's blocks found once beforehand. ``triton``
    is FlashAttention-2's forward pass between the first and last block of keys that any of its
    queries sees. On an H200 that takes about 147 us of a window at 8192, 54 % of the tensor cores'
    rate (439 TFLOP/s), 136 us of documents (39 %) and 193 us of ``softcap`` at 4096 (44 %). The
    work is that of the pairs that count: of a window, nine blocks of 128 keys are visited where
    eight count. Between the products stand the powers, 16 of them a cycle and SM, which is half as
    long as the products take, and so few blocks that loading the first is a good part; ``softcap``
    doubles the powers by its tanh. No vendor's kernel takes these masks whole. Sequence lengths of
    8191 end within a block.
    """
    given = [rng.randn(1, h, s, D, dtype=DTYPES[dtype]) for _ in range(3)]
    out = rng.empty(1, h, s, D, dtype=DTYPES[dtype])
    return *given, first_keys(mask, s, out.device), out


def _documents(s: int, place: Any) -> Any:
    """Return the document that each token belongs to."""
    edges = torch.tensor([s * cut // 100 for cut in CUTS], device=place)
    return torch.searchsorted(edges, torch.arange(s, device=place), right=True)


def first_keys(mask: str, s: int, place: Any) -> Any:
    """Return the first key that each query sees."""
    at = torch.arange(s, device=place, dtype=torch.int32)
    if mask == "window":
        return (at - s // WINDOW_PARTS + 1).clamp_(min=0)
    if mask == "document":
        documents = _documents(s, place)
        return torch.searchsorted(documents, documents).int()
    return torch.zeros_like(at)


def _rule(mask: str, s: int, place: Any) -> Any:
    """Return the mask as flex_attention takes it: whether query i sees key j."""
    if mask == "document":
        of = _documents(s, place)
        return lambda b, h, i, j: (j <= i) & (of[i] == of[j])
    window = s // WINDOW_PARTS if mask == "window" else s
    return lambda b, h, i, j: (j <= i) & (i - j < window)


def _bend(scores: Any, *_: Any) -> Any:
    return CAP * torch.tanh(scores / CAP)


@attention_mask.reference
def _reference(q: Any, k: Any, v: Any, first: Any, out: Any, *, mask: str, s: int) -> Any:
    at = torch.arange(s, device=q.device)
    unseen = ~_rule(mask, s, q.device)(0, 0, at[:, None], at[None, :])
    return attend64(q, k, v, unseen, _bend if mask == "softcap" else None)


@attention_mask.wrong
def _one_key_more(q: Any, k: Any, v: Any, first: Any, out: Any, *, mask: str, s: int) -> Any:
    """Give a window one key too many, let documents run together, leave scores unbent."""
    seen = _seen(mask if mask == "window" else "none", s, q.device, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def _seen(mask: str, s: int, place: Any, more: int = 0) -> Any:
    at = torch.arange(s, device=place)
    return (at <= at[:, None]) & (at >= first_keys(mask, s, place)[:, None] - more)


@attention_mask.impl
def _masked(ctx: Any, *, mask: str, s: int) -> Any:
    seen = _seen(mask, s, ctx.place)

    def bent(q: Any, k: Any, v: Any, *_: Any) -> Any:
        scores = _bend(q @ k.mT / math.sqrt(D)).masked_fill(~seen, -math.inf)
        return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v

    attend = torch.nn.functional.scaled_dot_product_attention
    return bent if mask == "softcap" else lambda q, k, v, *_: attend(q, k, v, attn_mask=seen)


@attention_mask.impl(needs=TRITON, beats=_WINDOW)
def _flex(ctx: Any, *, mask: str, s: int) -> Any:
    bend = _bend if mask == "softcap" else None
    run = flex(_rule(mask, s, ctx.place), s, s, ctx.place, score_mod=bend)
    return lambda q, k, v, *_: run(q, k, v)


@attention_mask.impl(needs=[*TRITON, arch("sm_90+")], beats=[_WINDOW, _DOCUMENT])
def _triton(ctx: Any, *, mask: str) -> Any:
    attention = Later("perfsuite_compute.attention_mask_triton").attention
    return partial(attention, cap=CAP if mask == "softcap" else 0.0)
