"""Attention of prompts of different lengths: padded, one by one, or packed behind each other."""

import inspect
from typing import Any

from perfsuite import Beats, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, torch
from perfsuite_compute.attention import attend64, flex, hidden

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
# A step of chunked prefill has 2048 tokens at most: 1024 more of a long prompt, a whole short one,
# and one of each prompt that is decoded. Others are whole prompts.
_DECODED = [length for length in LENGTHS["chat"] if length < max(LENGTHS["chat"])]
LENGTHS |= {"chunked": (4096, 1003, *_DECODED), "small_chunked": (265, 30, 130, 200)}
QUERIES = {**LENGTHS, "chunked": (1024, 1003, *[1] * 21), "small_chunked": (165, 1, 130, 7)}
_CHUNKED = ["loop", "varlen", "flex", "triton", "flash_attn", "flashinfer"]


def _bounds(prompts: str, place: Any) -> Any:
    """Return where each prompt's queries begin, and its keys, and where the last ones end."""
    each = [(0, *QUERIES[prompts]), (0, *LENGTHS[prompts])]
    return torch.tensor(each, device=place).cumsum(1).to(torch.int32)


def _flops(prompts: str, **_: Any) -> int:
    """Return the operations of the pairs that are seen."""
    both = zip(QUERIES[prompts], LENGTHS[prompts], strict=True)
    return 2 * HEADS * D * sum(new * (2 * s - new + 1) for new, s in both)


def _memory_bytes(dtype: str, prompts: str, impl: str) -> int:
    lengths = LENGTHS[prompts]
    total, most = sum(lengths), max(lengths)
    tokens = 4 * total + (4 * len(lengths) * most if impl == "padded" else 0)
    # flex finds its blocks from a mask of every token by every other.
    mask = 36 * sum(QUERIES[prompts]) * total if impl == "flex" else 0
    return tokens * HEADS * D * 8 + mask + 32 * most * most


@operator(
    nightly=[
        {"dtype": "bf16", "prompts": "chat"},
        {"dtype": "bf16", "prompts": "chunked", "impl": _CHUNKED},
    ],
    full=[
        {"dtype": "fp32", "prompts": "small", "impl": ["padded", "loop"]},
        {"dtype": "fp32", "prompts": "small_chunked", "impl": "loop"},
    ],
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    flops=_flops,
    rate_dtype=lambda *, dtype: dtype,
    memory_bytes=_memory_bytes,
    tags=["attention", "prefill", "load_balance", "tensor-cores"],
    source="variable lengths: FlashAttention-2 (arXiv:2307.08691) and flash_attn_varlen_func; "
    "ragged tensors: FlashInfer (arXiv:2501.01005); chunks: Sarathi-Serve (OSDI 2024)",
)
def attention_varlen(rng: Any, *, dtype: str, prompts: str) -> tuple[Any, ...]:
    """Let each of 22 prompts of 7 to 4096 tokens, packed behind each other, attend causally.

    ``chunked`` is a step of chunked prefill: the last quarter of one prompt, a whole one, and the
    next token of 21. 32 heads of queries share 8 of keys, [tokens, heads, 128]. ``padded`` copies
    all prompts into rows as long as the longest, 5.5 times the tokens and 11.7 times the pairs, and
    takes the results back. ``loop`` calls torch's fused attention once a prompt, with lengths that
    the host knows; a short one fills no GPU. ``nested`` is the same call on a jagged tensor, which
    knows no shared heads: keys and values are repeated. ``varlen`` is
    ``torch.nn.attention.varlen``, and ``flex`` is flex_attention with the prompts as documents,
    its blocks found once beforehand. ``triton`` takes the tiles of all prompts in one grid,
    those that see the most keys first; the order of tiles is made beforehand, as a server makes
    it once for all layers. ``flash_attn`` and ``flashinfer`` are those packages' kernels. On an
    H100 ``triton`` takes 629 us, 52 % of the ceiling, ``loop`` 871, ``varlen`` 979 and
    ``padded`` 5352.
    """
    name, tokens = DTYPES[dtype], sum(QUERIES[prompts])
    q = rng.randn(tokens, HEADS, D, dtype=name)
    k, v = (rng.randn(sum(LENGTHS[prompts]), KV_HEADS, D, dtype=name) for _ in "kv")
    return q, k, v, _bounds(prompts, q.device), rng.empty(tokens, HEADS, D, dtype=name)


def _each(q: Any, k: Any, v: Any, prompts: str) -> Any:
    """Return queries, keys and values of each prompt, [tokens, heads, width]."""
    lengths = QUERIES[prompts], LENGTHS[prompts], LENGTHS[prompts]
    return zip(*(x.split(of) for x, of in zip((q, k, v), lengths, strict=True)), strict=True)


@attention_varlen.reference
def _reference(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    """Return attention in float64, one prompt after the other."""
    results = []
    for each in _each(q, k, v, prompts):
        query, key, value = (x.transpose(0, 1)[None] for x in each)
        group = HEADS // KV_HEADS
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        # Queries are the last tokens.
        unseen = hidden(key.shape[2], q.device)[-query.shape[2] :]
        found = attend64(query, key, value, unseen)
        results.append(found[0].transpose(0, 1))
    return torch.cat(results)


def _attend(q: Any, k: Any, v: Any) -> Any:
    """Attend causally from the last tokens: [batch, tokens, heads, width], or jagged tensors."""
    attend, each = torch.nn.functional.scaled_dot_product_attention, (q, k, v)
    how: dict[str, Any] = {"is_causal": True}
    if not q.is_nested and q.shape[1] < k.shape[1]:
        lower = Later("torch.nn.attention.bias").causal_lower_right
        how = {"attn_mask": lower(q.shape[1], k.shape[1])}
    is_shared = q.shape[2] != k.shape[2]
    swapped = (x.transpose(1, 2) for x in each)
    return attend(*swapped, enable_gqa=is_shared, **how).transpose(1, 2)


@attention_varlen.wrong
def _run_together(q: Any, k: Any, v: Any, ends: Any, out: Any) -> Any:
    """Let a prompt see those before it."""
    return _attend(q[None], k[None], v[None])[0]


@attention_varlen.impl
def _loop(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    every = ((x[None] for x in each) for each in _each(q, k, v, prompts))
    return torch.cat([_attend(*each)[0] for each in every])


@attention_varlen.wrong
def _of_the_first_keys(q: Any, k: Any, v: Any, ends: Any, out: Any, *, prompts: str) -> Any:
    """Give a chunk the keys of the prompt's beginning; of whole prompts leave scores unscaled."""
    if QUERIES[prompts] == LENGTHS[prompts]:
        return _loop(q * D**0.5, k, v, ends, out, prompts=prompts)
    cut = ((x[None, : len(each[0])] for x in each) for each in _each(q, k, v, prompts))
    return torch.cat([_attend(*each)[0] for each in cut])


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
    return _attend(*(jagged(x, ends[0], **bounds) for x in (q, k, v))).values()


@attention_varlen.impl(needs=[cuda(), package("torch.nn.attention.varlen")])
def _varlen(ctx: Any, *, prompts: str) -> Any:
    attend, most = Later("torch.nn.attention.varlen").varlen_attn, _longest(prompts)
    known = inspect.signature(attend).parameters
    # torch 2.10 has is_causal; from 2.12 on shared heads are to be allowed.
    how: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {}
    how |= {name: True for name in ("is_causal", "enable_gqa") if name in known}
    return lambda q, k, v, ends, out: attend(q, k, v, *ends, *most, **how)


def _longest(prompts: str) -> tuple[int, int]:
    return max(QUERIES[prompts]), max(LENGTHS[prompts])


@attention_varlen.impl(needs=TRITON)
def _flex(ctx: Any, *, prompts: str) -> Any:
    numbers = torch.arange(len(LENGTHS[prompts]), device=ctx.place)
    sizes = [torch.tensor(of[prompts], device=ctx.place) for of in (QUERIES, LENGTHS)]
    of_query, of_key = (numbers.repeat_interleave(size) for size in sizes)
    # A prompt's last query is at its last key.
    later = (sizes[1].cumsum(0) - sizes[0].cumsum(0))[of_query]

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i + later[i]) & (of_query[i] == of_key[j])

    run = flex(rule, len(of_query), len(of_key), ctx.place, enable_gqa=True)

    def launch(q: Any, k: Any, v: Any, *_: Any) -> Any:
        return run(*(x.transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)

    return launch


@attention_varlen.impl(
    needs=[*TRITON, arch("sm_90+")],
    beats=Beats(
        "padded",
        5.0,
        "counted: rows as long as the longest have 11.7 times the pairs that are seen",
        at={"prompts": "chat"},
    ),
)
def _triton(ctx: Any, *, prompts: str) -> Any:
    kernels = Later("perfsuite_compute.attention_varlen_triton")
    return kernels.launch(QUERIES[prompts], LENGTHS[prompts], ctx.place)


@attention_varlen.impl(needs=[cuda(), package("flash_attn")])
def _flash_attn(ctx: Any, *, prompts: str) -> Any:
    attend, most = Later("flash_attn").flash_attn_varlen_func, _longest(prompts)
    return lambda q, k, v, ends, out: attend(q, k, v, *ends, *most, causal=True)


@attention_varlen.impl(needs=[cuda(), package("flashinfer")])
def _flashinfer(ctx: Any, *, prompts: str) -> Any:
    space = torch.empty(128 << 20, dtype=torch.uint8, device=ctx.place)
    made = Later("flashinfer").BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
    made.plan(
        *_bounds(prompts, ctx.place), HEADS, KV_HEADS, D, causal=True, q_data_type=torch.bfloat16
    )
    return lambda q, k, v, *_: made.run(q, k, v)
