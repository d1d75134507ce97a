"""Decoding over a long cache of keys and values, and what smaller caches are worth."""

from functools import partial
from typing import Any

from perfsuite import Beats, Claim, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

kernels = Later("perfsuite_compute.gqa_mla_triton")
D = 128
# Query heads, heads of keys, width of a key and of a value. Llama-2-7B, Llama-3-8B, and
# DeepSeek-V3 with its projections absorbed: 128 heads share one latent of 512 and 64.
MODELS = {"mha": (32, 32, D, D), "gqa": (32, 8, D, D), "mla": (128, 1, 576, 512)}
# The width of a head before absorption, 128 and 64 that carry the position, sets the scale.
MLA_SCALE = (128 + 64) ** -0.5
# Programs fill whole waves of 132 SMs with three blocks each (one, of latent attention): 3072 and
# 768 of 396, 128 of 132.
SPLITS = {"mha": 3, "gqa": 3, "mla": 2}
_LARGE: dict[str, Any] = {"dtype": "bf16", "b": 32}
_SMALL: dict[str, Any] = {"dtype": "fp32", "kind": "gqa", "b": 1, "s": 300}


def _memory_bytes(dtype: str, kind: str, b: int, s: int, impl: str) -> int:
    heads, kv_heads, wide, _ = MODELS[kind]
    cache = 2 * b * s * kv_heads * wide * (2 if dtype == "bf16" else 4)
    # A repeated cache, or scores in the dtype and fp32; float64 of one sequence.
    copies = heads // kv_heads if (kind, impl) == ("gqa", "torch") else 0
    scores = 3 * b * heads * s * 4 if (kind, impl) == ("mla", "torch") else 0
    return cache * (1 + copies) + scores + 8 * s * (2 * heads + 2 * kv_heads * wide) + (1 << 26)


# A night has the first and the fastest of those for the latent; the full tier compares them all.
@operator(
    smoke={**_SMALL, "impl": "sdpa"},
    nightly=[
        {**_LARGE, "kind": "mha", "s": 4096, "impl": "triton"},
        {**_LARGE, "kind": "gqa", "s": 4096, "impl": ["torch", "sdpa", "flex", "triton"]},
        {**_LARGE, "kind": "mla", "s": 4096, "impl": ["torch", "gluon"]},
        {**_LARGE, "kind": "mla", "s": 4095, "impl": "gluon"},
    ],
    full=[
        {**_LARGE, "kind": "mha", "s": [4096, 16384], "impl": ["sdpa", "triton"]},
        {**_LARGE, "kind": "gqa", "s": 16384, "impl": ["torch", "sdpa", "flex", "triton"]},
        {**_LARGE, "kind": "gqa", "s": 16383, "impl": "triton"},
        {**_LARGE, "kind": "mla", "s": 16384, "impl": ["torch", "triton", "gluon"]},
        {**_SMALL, "impl": "torch"},
    ],
    needs=[
        cuda().when(dtype="bf16"),
        arch("sm_80+").when(dtype="bf16"),
        arch("sm_90").when(impl="triton", kind="mla"),  # its tiles are Hopper's shared memory
    ],
    flops=lambda *, kind, b, s: 2 * b * s * MODELS[kind][0] * sum(MODELS[kind][2:]),
    rate_dtype=lambda *, dtype: dtype,
    memory_bytes=_memory_bytes,
    tags=["attention", "decode"],
    source="DeepSeek's latent attention: chapter 11; GQA (arXiv:2305.13245); FlashMLA",
)
def gqa_mla(rng: Any, *, dtype: str, kind: str, b: int, s: int) -> tuple[Any, ...]:
    """Let one new query of each of b sequences attend to s tokens of its cache.

    A token's cache is 8192 numbers with ``mha``, 2048 with ``gqa`` and 576 with ``mla``, which
    makes the first two a matter of bandwidth, while 128 heads on one latent come near the tensor
    cores' limit. ``torch`` repeats keys and values for each query head (transformers'
    ``repeat_kv``), or multiplies by the latent with the scores in memory. ``sdpa`` is PyTorch's
    fused attention with ``enable_gqa``, ``flex`` what flex_attention compiles for few queries
    (FlexDecoding). ``triton`` loads each block of the cache once for all
    heads that share it, splits the tokens among programs and joins their parts (flash decoding).
    With ``mla`` it reaches 33 % of the tensor cores' rate on an H200 (136 us, 268 TFLOP/s): beside
    the queries of 64 heads shared memory holds two blocks of the latent, and Triton copies the next
    one only under this one's last product. ``gluon`` says by hand which warps do what. Four turn
    the scores of a block of 32 tokens into powers, while eight add the latents of the block before,
    each times its power, and have what they are done with filled again. On an H100 it takes 89 us
    at 4096 tokens, 52 % (410 TFLOP/s), and 301 us at 16384, 61 %. 64 heads do 121 operations on
    each byte, so that L2, too, would have to give 6.6 TB/s at the full rate; and the first
    product's instructions are 32 keys wide, which wait for shared memory half as long again as they
    multiply.
    """
    name, (heads, kv_heads, wide, narrow) = DTYPES[dtype], MODELS[kind]
    q, out = rng.randn(b, heads, wide, dtype=name), rng.empty(b, heads, narrow, dtype=name)
    if kind == "mla":
        return q, rng.randn(b, s, wide, dtype=name), out
    return q, *(rng.randn(b, kv_heads, s, wide, dtype=name) for _ in range(2)), out


@gqa_mla.reference
def _reference(q: Any, *rest: Any, kind: str) -> Any:
    """Return attention in float64, one sequence at a time."""
    *caches, out = rest
    scale = MLA_SCALE if kind == "mla" else D**-0.5
    result = torch.empty(out.shape, dtype=torch.float64, device=q.device)
    for at in range(len(q)):
        # [kv heads, s, width] and [kv heads, heads of each, width]; the latent is key and value.
        k, v = (each[at].double().reshape(-1, *each.shape[-2:]) for each in (caches * 2)[:2])
        scores = q[at].double().reshape(k.shape[0], -1, k.shape[2]) @ k.mT * scale
        shares = (scores - scores.logsumexp(-1, keepdim=True)).exp()
        result[at] = (shares @ v[..., : out.shape[-1]]).reshape(result[at].shape)
    return result


@gqa_mla.wrong
def _without_the_last_keys(q: Any, *rest: Any, kind: str) -> Any:
    """Forget the last keys, as a loop over whole blocks does."""
    *caches, out = rest
    return _reference(q, *(each[..., :-16, :] for each in caches), out, kind=kind).to(q.dtype)


def _attend(q: Any, k: Any, v: Any, out: Any) -> Any:
    attend, is_shared = torch.nn.functional.scaled_dot_product_attention, k.shape[1] < q.shape[1]
    return attend(q[:, :, None], k, v, enable_gqa=is_shared)[:, :, 0]


gqa_mla.impl(_attend, name="sdpa")


@gqa_mla.impl(needs=TRITON)
def _flex(ctx: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    run = compiled(lambda q, k, v: flex_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0])
    return lambda q, k, v, out: run(q, k, v)


@gqa_mla.impl
def _torch(q: Any, k: Any, *rest: Any, kind: str) -> Any:
    if kind != "mla":
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, dim=1) for each in (k, rest[0]))
        return _attend(q, k, v, rest[1])
    shares = (q @ k.mT * MLA_SCALE).softmax(-1, dtype=torch.float32).to(q.dtype)
    return shares @ k[..., : rest[0].shape[-1]]


@gqa_mla.impl(
    needs=[*TRITON, arch("sm_90+")],
    beats=Beats(
        "torch",
        8.0,
        "counted as in the GQA paper, where decoding is bound by loading keys and values: "
        "repeating them 4 times reads 1, writes 4 and reads 4 where 1 is needed, a ratio of 9",
        at={"kind": "gqa", "s": 4096},
        name="gqa_not_repeated",
    ),
)
def _triton(ctx: Any, *, kind: str) -> Any:
    if kind == "mla":
        return partial(kernels.mla_decode, scale=MLA_SCALE, splits=SPLITS[kind])
    return partial(kernels.decode, splits=SPLITS[kind])


@gqa_mla.impl(
    needs=[cuda(), package("triton.experimental.gluon.language.nvidia.hopper"), arch("sm_90")]
)
def _gluon(ctx: Any, *, kind: str) -> Any:
    mla_decode = Later("perfsuite_compute.gqa_mla_gluon").mla_decode
    return partial(mla_decode, scale=MLA_SCALE, splits=SPLITS[kind])


SMALLER_CACHE = Claim(
    name="gqa_smaller_cache",
    case="gqa_mla",
    faster={"kind": "gqa"},
    than={"kind": "mha"},
    by=2.0,
    at={"impl": ("sdpa", "triton"), "s": (4096,)},
    source="GQA (arXiv:2305.13245), table 1: T5-XXL takes 0.28 s with 8 heads of keys in place of "
    "64, 1.51 s before, 5.4; here the cache shrinks by 4; half of that is asked for",
)
