"""Attention of prompts of different lengths: padded, one by one, or packed behind each other."""

import inspect
from typing import Any

from perfsuite import Beats, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch
from perfsuite_compute.attention import attend64, hidden

# Llama-3-8B's card.
HEADS, KV_HEADS, D = 32, 8, 128
# Prompts as a server finds them waiting: most are short, a few hold most of the tokens, and none
# fits a tile but the longest.
LENGTHS = {
    "chat": (
        236, 19, 1201, 83, 441, 2210, 7, 633, 147, 1427, 58,
        4096, 368, 112, 745, 34, 1689, 297, 870, 190, 512, 1023,
    ),
    "small": (65, 1, 130, 7),
}  # fmt: skip


def _memory_bytes(dtype: str, prompts: str, impl: str) -> int:
    lengths = LENGTHS[prompts]
    total, most = sum(lengths), max(lengths)
    tokens = 4 * total + (4 * len(lengths) * most if impl == "padded" else 0)
    # flex finds its blocks from a mask of every token by every other.
    mask = 36 * total * total if impl == "flex" else 0
    return tokens * HEADS * D * 8 + mask + 32 * most * most


@operator(
    nightly={"dtype": "bf16", "prompts": "chat"},
    full={"dtype": "fp32", "prompts": "small", "impl": ["padded", "loop"]},
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    # Of the pairs that are seen.
    flops=lambda *, prompts: 2 * HEADS * D * sum(s * (s + 1) for s in LENGTHS[prompts]),
    rate_dtype=lambda *, dtype: dtype,
    memory_bytes=_memory_bytes,
    tags=["attention", "prefill", "load_balance", "tensor-cores"],
    source="variable lengths: FlashAttention-2 (arXiv:2307.08691) and flash_attn_varlen_func; "
    "ragged tensors: FlashInfer (arXiv:2501.01005)",
)
def attention_varlen(rng: Any, *, dtype: str, prompts: str) -> tuple[Any, ...]:
    """Let each of 22 prompts of 7 to 4096 tokens, packed behind each other, attend causally.

    32 heads of queries share 8 of keys, [tokens, heads, 128]. ``padded`` copies all prompts into
    rows as long as the longest, 5.5 times the tokens and 11.7 times the pairs, and takes the
    results back. ``loop`` calls torch's fused attention once a prompt, with lengths that the
    host knows; a short one fills no GPU. ``nested`` is the same call on a jagged tensor, which
    knows no shared heads: keys and values are repeated. ``varlen`` is
    ``torch.nn.attention.varlen``, and ``flex`` is flex_attention with the prompts as documents,
    its blocks found once beforehand. ``triton`` takes the tiles of all prompts in one grid,
    those that see the most keys first; the order of tiles is made beforehand, as a server makes
    it once for all layers. ``flash_attn`` and ``flashinfer`` are those packages' kernels. On an
    H100 ``triton`` takes 629 us, 52 % of the ceiling, ``loop`` 871, ``varlen`` 979 and
    ``padded`` 5352.
    """
    name, lengths = DTYPES[dtype], LENGTHS[prompts]
    q, k, v, out = (
        make(sum(lengths), heads, D, dtype=name)
        for make, heads in (
            (rng.randn, HEADS), (rng.randn, KV_HEADS), (rng.randn, KV_HEADS), (rng.empty, HEADS)
        )
    )  # fmt: skip
    ends = torch.tensor((0, *lengths), device=out.device).cumsum(0)
    return q, k, v, ends.to(torch.int32), out


@attention_varlen.reference
def _reference(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    """Return attention in float64, one prompt after the other."""
    results = []
    for each in zip(*(x.split(LENGTHS[prompts]) for x in (q, k, v)), strict=True):
        query, key, value = (x.transpose(0, 1)[None] for x in each)
        group = HEADS // KV_HEADS
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        found = attend64(query, key, value, hidden(query.shape[2], q.device))
        results.append(found[0].transpose(0, 1))
    return torch.cat(results)


def _attend(q: Any, k: Any, v: Any) -> Any:
    """Attend causally: [batch, tokens, heads, width], or the same as a jagged tensor."""
    attend, each = torch.nn.functional.scaled_dot_product_attention, (q, k, v)
    is_shared = q.shape[2] != k.shape[2]
    swapped = (x.transpose(1, 2) for x in each)
    return attend(*swapped, is_causal=True, enable_gqa=is_shared).transpose(1, 2)


@attention_varlen.wrong
def _run_together(q: Any, k: Any, v: Any, ends: Any, out: Any) -> Any:
    """Let a prompt see those before it."""
    return _attend(q[None], k[None], v[None])[0]


@attention_varlen.impl
def _loop(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    every = zip(*(x[None].split(LENGTHS[prompts], 1) for x in (q, k, v)), strict=True)
    return torch.cat([_attend(*each)[0] for each in every])


@attention_varlen.wrong
def _of_other_heads(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    """Give queries the keys in turn, not those that their group shares."""
    k, v = (x.repeat(1, HEADS // KV_HEADS, 1) for x in (k, v))
    return _loop(q, k, v, ends, out, prompts=prompts)


@attention_varlen.impl
def _padded(ctx: Any, *, prompts: str) -> Any:
    lengths = LENGTHS[prompts]
    seen = [torch.arange(s, device=ctx.place) + at * max(lengths) for at, s in enumerate(lengths)]
    place, pad = torch.cat(seen), torch.nn.utils.rnn.pad_sequence

    def launch(q: Any, k: Any, v: Any, ends: Any, out: Any) -> Any:
        rows = (pad(x.split(lengths), batch_first=True) for x in (q, k, v))
        return _attend(*rows).flatten(0, 1)[place]

    return launch


@attention_varlen.impl(needs=[cuda()])
def _nested(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    # Without them it asks the GPU, and the host waits.
    bounds = {"min_seqlen": min(LENGTHS[prompts]), "max_seqlen": max(LENGTHS[prompts])}
    jagged = torch.nested.nested_tensor_from_jagged
    return _attend(*(jagged(x, ends, **bounds) for x in (q, k, v))).values()


@attention_varlen.impl(needs=[cuda(), package("torch.nn.attention.varlen")])
def _varlen(ctx: Any, *, prompts: str) -> Any:
    attend, most = Later("torch.nn.attention.varlen").varlen_attn, max(LENGTHS[prompts])
    known = inspect.signature(attend).parameters
    # torch 2.10 has is_causal; from 2.12 on shared heads are to be allowed.
    how: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {}
    how |= {name: True for name in ("is_causal", "enable_gqa") if name in known}
    return lambda q, k, v, ends, out: attend(q, k, v, ends, ends, most, most, **how)


@attention_varlen.impl(needs=TRITON)
def _flex(ctx: Any, *, prompts: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    lengths, total = LENGTHS[prompts], sum(LENGTHS[prompts])
    numbers = torch.arange(len(lengths), device=ctx.place)
    of = numbers.repeat_interleave(torch.tensor(lengths, device=ctx.place))
    blocks = create_block_mask(
        lambda b, h, i, j: (j <= i) & (of[i] == of[j]), None, None, total, total, device=ctx.place
    )
    run = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=True))

    def launch(q: Any, k: Any, v: Any, *_: Any) -> Any:
        return run(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)

    return launch


@attention_varlen.impl(
    needs=[*TRITON, arch("sm_90+")],
    beats=Beats(
        "padded",
        5.0,
        "counted: rows as long as the longest have 11.7 times the pairs that are seen; less than "
        "half of that is asked for",
        at={"prompts": "chat"},
        needs=(cuda(),),
    ),
)
def _triton(ctx: Any, *, prompts: str) -> Any:
    kernels = Later("perfsuite_compute.attention_varlen_triton")
    return kernels.launch(LENGTHS[prompts], ctx.place)


@attention_varlen.impl(needs=[cuda(), package("flash_attn")])
def _flash_attn(ctx: Any, *, prompts: str) -> Any:
    attend, most = Later("flash_attn").flash_attn_varlen_func, max(LENGTHS[prompts])
    return lambda q, k, v, ends, out: attend(q, k, v, ends, ends, most, most, causal=True)


@attention_varlen.impl(needs=[cuda(), package("flashinfer")])
def _flashinfer(ctx: Any, *, prompts: str) -> Any:
    space = torch.empty(128 << 20, dtype=torch.uint8, device=ctx.place)
    made = Later("flashinfer").BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
    ends = torch.tensor((0, *LENGTHS[prompts]), device=ctx.place).cumsum(0).to(torch.int32)
    made.plan(ends, ends, HEADS, KV_HEADS, D, causal=True, q_data_type=torch.bfloat16)
    return lambda q, k, v, *_: made.run(q, k, v)
