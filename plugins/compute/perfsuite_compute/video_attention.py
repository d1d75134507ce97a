"""Attention within a video: every token to every other, or to the tiles around its own."""

import math
from functools import partial
from typing import Any

from perfsuite import Claim, arch, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

D = 128
# Heads of one of 8 GPUs, a video and a box in tiles, and the tokens of a tile. 69 frames of
# 768 x 1280 are 18 x 48 x 80 patches of Wan2.1-14B (40 heads), and 117 frames 30 x 48 x 80 of
# HunyuanVideo (24): 4 x 8 x 8 by their VAE, of which a patch has 1 x 2 x 2. STA's tiles have
# 6 x 8 x 8 patches.
MODELS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], int]] = {
    "wan2.1-14b": (5, (3, 6, 10), (3, 3, 3), 384),
    "hunyuanvideo": (3, (5, 6, 10), (3, 3, 3), 384),
    "tiny": (1, (4, 4, 2), (3, 3, 1), 128),
}
_USUAL: dict[str, Any] = {"dtype": "bf16", "model": "wan2.1-14b"}
_TILES = ["flex", "triton"]


def _tokens(model: str) -> int:
    _, video, _, tile = MODELS[model]
    return math.prod(video) * tile


def _keys(model: str, window: str) -> int:
    """Return the keys that each query sees."""
    _, _, box, tile = MODELS[model]
    return _tokens(model) if window == "full" else math.prod(box) * tile


def _memory_bytes(dtype: str, model: str, window: str, impl: str) -> int:
    heads, s = MODELS[model][0], _tokens(model)
    # A mask of bool and one in the dtype; the reference in float64, a tile of queries at a time.
    mask = 5 * s * s if (window, impl) == ("local", "sdpa") else 0
    return heads * s * (D * 40 + 24 * MODELS[model][3]) + mask


@operator(
    nightly=[
        {**_USUAL, "window": "full", "impl": ["sdpa", "triton"]},
        {**_USUAL, "window": "local", "impl": _TILES},
    ],
    full=[
        {**_USUAL, "window": ["full", "local"]},
        {**_USUAL, "model": "hunyuanvideo", "window": ["full", "local"], "impl": _TILES},
        {"dtype": "fp32", "model": "tiny", "window": ["full", "local"], "impl": "sdpa"},
    ],
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    flops=lambda *, model, window: 4 * D * MODELS[model][0] * _tokens(model) * _keys(model, window),
    rate_dtype=lambda *, dtype: dtype,
    memory_bytes=_memory_bytes,
    tags=["attention", "diffusion", "tensor-cores"],
    source="Sliding Tile Attention (arXiv:2502.04507); Wan2.1-T2V-14B's and HunyuanVideo's cards",
)
def video_attention(rng: Any, *, dtype: str, model: str, window: str) -> tuple[Any, ...]:
    """Attend within a video's latent patches, all of them (``full``) or 18 x 24 x 24 (``local``).

    A tile of 6 x 8 x 8 patches sees the 27 tiles around it, and as many at an edge, where they are
    moved inside: no tile is seen in part. That is 15 % of all pairs with Wan2.1-14B's 69,120
    tokens. Tokens are in the order of tiles, as they are kept between a model's layers. ``sdpa`` is
    PyTorch's fused attention, which computes all pairs and takes ``local`` as a mask. ``flex`` is
    flex_attention with blocks as large as tiles. ``triton`` finds the same tiles by arithmetic.
    """
    heads, s = MODELS[model][0], _tokens(model)
    given = (rng.randn(1, heads, s, D, dtype=DTYPES[dtype]) for _ in range(3))
    return *given, rng.empty(1, heads, s, D, dtype=DTYPES[dtype])


def tiles_seen(model: str, window: str, place: Any, *, is_moved: bool = True) -> Any:
    """Return which tiles the queries of each see: as far from a centre that leaves room for all."""
    _, video, box, _ = MODELS[model]
    at = torch.cartesian_prod(*(torch.arange(size, device=place) for size in video))
    if window == "full":
        return torch.ones(len(at), len(at), dtype=torch.bool, device=place)
    reach = torch.tensor(box, device=place) // 2
    last = torch.tensor(video, device=place) - 1 - reach
    centre = at.clamp(reach, last) if is_moved else at
    return ((centre[:, None] - at).abs() <= reach).all(-1)


def _attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
    """Return attention in float64, one tile of queries of all heads at a time."""
    result = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    q, k, v, out = (x[0].unflatten(1, (len(seen), -1)) for x in (q, k, v, result))
    for tile, own in enumerate(seen):
        keys, values = (x[:, own].flatten(1, 2).double() for x in (k, v))
        scores = (q[:, tile].double() @ keys.mT).div_(D**0.5)
        out[:, tile] = scores.sub_(scores.logsumexp(-1, keepdim=True)).exp_() @ values
    return result


@video_attention.reference
def _reference(q: Any, k: Any, v: Any, out: Any, *, model: str, window: str) -> Any:
    return _attend(q, k, v, tiles_seen(model, window, q.device))


@video_attention.wrong
def _of_the_next_tile(q: Any, k: Any, v: Any, out: Any, *, model: str, window: str) -> Any:
    """Give a tile what the next one sees; of all tiles leave out the last."""
    seen = tiles_seen(model, window, q.device).roll(-1, 0)
    seen[:, -1] &= window == "local"
    return _attend(q, k, v, seen).to(q.dtype)


@video_attention.wrong
def _cut_at_edges(q: Any, k: Any, v: Any, out: Any, *, model: str, window: str) -> Any:
    """Leave out what is over an edge; of all tiles leave scores unscaled."""
    q = q if window == "local" else q * D**0.5
    return _attend(q, k, v, tiles_seen(model, window, q.device, is_moved=False)).to(q.dtype)


@video_attention.impl
def _sdpa(ctx: Any, *, model: str, window: str) -> Any:
    attend, tile = torch.nn.functional.scaled_dot_product_attention, MODELS[model][3]
    if window == "full":
        return lambda q, k, v, out: attend(q, k, v)
    seen = tiles_seen(model, window, ctx.place)
    seen = seen.repeat_interleave(tile, 0).repeat_interleave(tile, 1)
    return lambda q, k, v, out: attend(q, k, v, attn_mask=seen)


@video_attention.impl(needs=TRITON)
def _flex(ctx: Any, *, model: str, window: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    blocks = tile_mask(model, window, ctx.place)
    run = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))
    return lambda q, k, v, out: run(q, k, v)


def tile_mask(model: str, window: str, place: Any) -> Any:
    """Return a mask of flex_attention: no tile is seen in part, and so many and these are whole."""
    seen = tiles_seen(model, window, place)[None, None].int()
    counts = seen.sum(-1, dtype=torch.int32)
    order = seen.argsort(dim=-1, descending=True, stable=True).int()
    make = Later("torch.nn.attention.flex_attention").BlockMask.from_kv_blocks
    return make(counts * 0, order, counts, order, BLOCK_SIZE=MODELS[model][3])


@video_attention.impl(needs=[*TRITON, arch("sm_90+")])
def _triton(ctx: Any, *, model: str, window: str) -> Any:
    attention = Later("perfsuite_compute.video_attention_triton").attention
    _, video, box, tile = MODELS[model]
    if window == "full":  # all tiles are one row of them
        video = box = (1, 1, math.prod(video))
    return partial(attention, video=video, box=box, tile=tile)


LOCAL = Claim(
    name="video_local",
    case="video_attention",
    faster={"window": "local"},
    than={"window": "full"},
    by=4.0,
    at={"impl": ("flex", "triton"), "dtype": ("bf16",)},
    source="Sliding Tile Attention (arXiv:2502.04507): 1.6 to 10 times as fast as FlashAttention-3;"
    " counted, 15 and 9 % of the pairs are left; 4 of 6.7 is asked for",
)
