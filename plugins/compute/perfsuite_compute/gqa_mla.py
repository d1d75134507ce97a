"""Decoding over a long cache of keys and values, and what smaller caches are worth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
D = 128
# Query heads, heads of keys, width of a key and of a value. Llama-2-7B, Llama-3-8B, and
# DeepSeek-V3 with its projections absorbed: 128 heads share one latent of 512 and 64.
MODELS = {"mha": (32, 32, D, D), "gqa": (32, 8, D, D), "mla": (128, 1, 576, 512)}
# The width of a head before absorption, 128 and 64 that carry the position, sets the scale.
MLA_SCALE = (128 + 64) ** -0.5
# Programs fill whole waves of 132 SMs with three blocks each (one, of latent attention): 3072 and
# 768 of 396, 128 of 132.
SPLITS = {"mha": 3, "gqa": 3, "mla": 2}
ODD_S, LONG_S, LONG_ODD_S, _FEW = 4095, 16384, 16383, 300
_IMPLS = {
    "mha": ("sdpa", "triton"),
    "gqa": ("torch", "sdpa", "triton"),
    "mla": ("torch", "triton", "gluon"),
}
_ODD = {ODD_S: ("mla", "gluon"), LONG_ODD_S: ("gqa", "triton")}
_LOST_KEYS = 16


def _is_asked(dtype: str, kind: str, b: int, s: int, impl: str) -> bool:
    if s in _ODD:
        return (kind, impl) == _ODD[s]
    # A night has the first and the fastest of these; the full tier compares them all.
    if (kind, impl) == ("mla", "triton"):
        return s == LONG_S
    return impl in _IMPLS[kind]


def _work(dtype: str, kind: str, b: int, s: int, impl: str) -> Work:
    heads, kv_heads, wide, narrow = MODELS[kind]
    size = _DTYPES[dtype][1]
    # The latent is the key, and its first 512 the value: it is read once.
    cached = wide if kind == "mla" else wide + narrow
    return Work(
        read_bytes=b * (s * kv_heads * cached + heads * wide) * size,
        write_bytes=b * heads * narrow * size,
        flops=2 * b * heads * s * (wide + narrow),
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, kind: str, b: int, s: int, impl: str) -> int:
    heads, kv_heads, wide, _ = MODELS[kind]
    size = _DTYPES[dtype][1]
    cache = 2 * b * s * kv_heads * wide * size
    # A repeated cache, or scores in the dtype and fp32; float64 of one sequence.
    copies = heads // kv_heads if (kind, impl) == ("gqa", "torch") else 0
    scores = 3 * b * heads * s * 4 if (kind, impl) == ("mla", "torch") else 0
    return cache * (1 + copies) + scores + 8 * s * (2 * heads + 2 * kv_heads * wide) + (1 << 26)


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "kind": ["mha", "gqa", "mla"],
        "b": [32],
        "s": [ODD_S, 4096],
        "impl": ["torch", "sdpa", "triton", "gluon"],
    },
    smoke={"dtype": ["fp32"], "kind": ["gqa"], "b": [1], "s": [_FEW], "impl": ["torch", "sdpa"]},
    full={"s": [ODD_S, 4096, LONG_ODD_S, LONG_S]},
    only=_is_asked,
    full_only=[{"kind": ["mha"], "impl": ["sdpa"]}, {"s": [_FEW], "impl": ["torch"]}],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        package("triton.experimental.gluon.language.nvidia.hopper").when(impl="gluon"),
        cuda().when(impl=("triton", "gluon")),
        cuda().when(dtype="bf16"),
        arch("sm_80+").when(dtype="bf16"),
        arch("sm_90+").when(impl="triton"),
        arch("sm_90").when(impl="triton", kind="mla"),  # its tiles are Hopper's shared memory
        arch("sm_90").when(impl="gluon"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["attention", "decode"],
    source="DeepSeek's latent attention: chapter 11; GQA (arXiv:2305.13245); FlashMLA",
)
def gqa_mla(ctx: Any, dtype: str, kind: str, b: int, s: int, impl: str) -> Workload:
    """Let one new query of each of b sequences attend to s tokens of its cache.

    A token's cache is 8192 numbers with ``mha``, 2048 with ``gqa`` and 576 with ``mla``, which
    makes the first two a matter of bandwidth, while 128 heads on one latent come near the tensor
    cores' limit. ``torch`` repeats keys and values for each query head (transformers'
    ``repeat_kv``), or multiplies by the latent with the scores in memory. ``sdpa`` is PyTorch's
    fused attention with ``enable_gqa``. ``triton`` loads each block of the cache once for all
    heads that share it, splits the tokens among programs and joins their parts (flash decoding).
    With ``mla`` it reaches 33 % of the tensor cores' rate on an H200 (136 us, 268 TFLOP/s): beside
    the queries of 64 heads shared memory holds two blocks of the latent, and Triton copies the next
    one only under this one's last product. ``gluon`` says by hand that it is to be copied under all
    of this one's work: about 92 us, 49 % (396 TFLOP/s). 64 heads do 121 operations on each byte, so
    that L2, too, would have to give 6.6 TB/s at the full rate; the first product's instructions are
    32 keys wide, which wait for shared memory half as long again as they multiply; and while the
    powers are taken nothing multiplies, since shared memory has no room for a second program.
    """
    name = _DTYPES[dtype][0]
    heads, kv_heads, wide, narrow = MODELS[kind]

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        q, out = rng.randn(b, heads, wide, dtype=name), rng.empty(b, heads, narrow, dtype=name)
        if kind == "mla":
            return q, rng.randn(b, s, wide, dtype=name), out
        return q, *(rng.randn(b, kv_heads, s, wide, dtype=name) for _ in range(2)), out

    right = _by_sequence(MLA_SCALE if kind == "mla" else D**-0.5, narrow)
    return Workload(
        fn=_launch_of(impl, kind),
        make_inputs=make_inputs,
        reference=right,
        wrong=_without_the_last(right),
    )


def _launch_of(impl: str, kind: str) -> Callable[..., Any]:
    if impl == "gluon":
        from perfsuite_compute import gqa_mla_gluon

        return partial(gqa_mla_gluon.mla_decode, scale=MLA_SCALE, splits=SPLITS[kind])
    if impl == "triton":
        return _launch_triton(kind)
    if kind == "mla":
        return _launch_latent
    return _launch_repeated if impl == "torch" else _launch_sdpa


def _launch_triton(kind: str) -> Callable[..., Any]:
    from perfsuite_compute import gqa_mla_triton

    splits = SPLITS[kind]
    if kind == "mla":
        return partial(gqa_mla_triton.mla_decode, scale=MLA_SCALE, splits=splits)
    return partial(gqa_mla_triton.decode, splits=splits)


def _launch_sdpa(q: Any, k: Any, v: Any, out: Any) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    is_shared = k.shape[1] < q.shape[1]
    return scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=is_shared)[:, :, 0]


def _launch_repeated(q: Any, k: Any, v: Any, out: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    return _launch_sdpa(q, k, v, out)


def _launch_latent(q: Any, cache: Any, out: Any) -> Any:
    import torch

    scores = q @ cache.mT * MLA_SCALE
    shares = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return shares @ cache[..., : out.shape[-1]]


def _by_sequence(scale: float, narrow: int) -> Callable[..., Any]:
    """Return attention in float64, one sequence at a time."""
    import torch

    def reference(q: Any, *rest: Any) -> Any:
        *caches, out = rest
        result = torch.empty(out.shape, dtype=torch.float64, device=q.device)
        for index in range(q.shape[0]):
            # [kv heads, s, width] and [kv heads, heads of each, width]
            k, v = (each[index].double().reshape(-1, *each.shape[-2:]) for each in _both(caches))
            queries = q[index].double().reshape(k.shape[0], -1, k.shape[2])
            scores = queries @ k.mT * scale
            shares = (scores - scores.logsumexp(-1, keepdim=True)).exp()
            result[index] = (shares @ v[..., :narrow]).reshape(result[index].shape)
        return result

    return reference


def _both(caches: list[Any]) -> list[Any]:
    return caches if len(caches) > 1 else caches * 2


def _without_the_last(right: Callable[..., Any]) -> Callable[..., Any]:
    """Forget the last keys, as a loop over whole blocks does."""

    def wrong(q: Any, *rest: Any) -> Any:
        *caches, out = rest
        return right(q, *(each[..., :-_LOST_KEYS, :] for each in caches), out).to(q.dtype)

    return wrong


CASES: tuple[perfsuite.Case | Claim, ...] = (
    gqa_mla,
    Claim(
        name="gqa_smaller_cache",
        case="gqa_mla",
        faster={"kind": "gqa"},
        than={"kind": "mha"},
        by=2.0,
        at={"impl": ("sdpa", "triton"), "s": (4096,)},
        needs=(cuda(),),
        source=(
            "GQA (arXiv:2305.13245), table 1: T5-XXL takes 0.28 s with 8 heads of keys in place "
            "of 64, 1.51 s before, 5.4; here the cache shrinks by 4; half of that is asked for"
        ),
    ),
    Claim(
        name="gqa_not_repeated",
        case="gqa_mla",
        faster={"impl": "triton"},
        than={"impl": "torch"},
        by=3.0,
        at={"kind": ("gqa",), "s": (4096,)},
        needs=(cuda(),),
        source=(
            "counted as in the GQA paper, where decoding is bound by loading keys and values: "
            "repeating them 4 times reads 1, writes 4 and reads 4 where 1 is needed, a ratio of 9"
        ),
    ),
)
