"""Where the keys and values of a batch of mixed lengths lie, and how much of that lies idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import perfsuite
from perfsuite import Claim, Metric, Work, Workload, cuda, package
from perfsuite_inference.shapes import Shape

# One layer of Llama-3.1-8B; its matrices play no part.
_LAYERS = {
    "bf16": Shape(1, 4096, 32, 8, 128, 14336, 128256),
    "fp32": Shape(1, 4096, 32, 8, 128, 14336, 128256, dtype="float32"),
}
_SEED = 0
_SHARPNESS = 2.5
# Bytes for one row of the float64 reference and its scores; fp32 is that of the smoke tier.
_SPARE = {"bf16": 2 << 30, "fp32": 64 << 20}
_BLOCKS = {"contiguous": 0, "paged_16": 16, "paged_64": 64}


def lengths_of(batch: int, longest: int) -> list[int]:
    """Return the tokens of each row, few of them long: a third of ``longest`` on average.

    Squares of evenly spaced quantiles, odd, and in an order without pattern.
    """
    ranks = [row * 7 % batch if batch % 7 else row for row in range(batch)]
    return [int(longest * ((rank + 0.5) / batch) ** 2) // 2 * 2 + 1 for rank in ranks]


def _work(dtype: str, batch: int, longest: int, impl: str) -> Work:
    s, tokens = _LAYERS[dtype], sum(lengths_of(batch, longest))
    vectors = batch * s.heads * s.head
    return Work(
        read_bytes=s.item_bytes * (tokens * s.kv_elements + vectors),
        write_bytes=s.item_bytes * (batch * s.kv_elements + vectors),
        flops=4 * tokens * s.heads * s.head,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, batch: int, longest: int, impl: str) -> int:
    s = _LAYERS[dtype]
    # The cache, the tokens by row for the reference, and copies of both that the control makes.
    return 6 * batch * (longest + 64) * s.kv_elements * s.item_bytes + _SPARE[dtype]


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "batch": [32],
        "longest": [2048, 8192],
        "impl": list(_BLOCKS),
    },
    smoke={"dtype": ["fp32"], "batch": [8], "longest": [256]},
    waits=lambda impl, **_: impl == "paged_64",
    needs=(
        package("torch"),
        cuda().when(dtype="bf16"),
        package("triton").when(impl=("paged_16", "paged_64"), dtype="bf16"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    cold=False,
    metrics=(Metric("kv_bytes", "B"), Metric("wasted_bytes", "B")),
    tags=["decode", "paged", "kv-cache"],
    source="arXiv:2309.06180 (PagedAttention); chapter 10 of the book",
)
def kv_cache(ctx: Any, dtype: str, batch: int, longest: int, impl: str) -> Workload:
    """Store a new token a row and attend to all, in one layer, rows of mixed lengths.

    ``contiguous`` keeps room for ``longest`` tokens a row and attends over all of it with a mask.
    ``paged_16`` and ``paged_64`` hand out blocks of that many tokens as rows grow, and attend
    through the table: by the Triton kernel on a GPU, by gathering on a CPU. ``kv_bytes`` is what
    the cache takes, ``wasted_bytes`` what of it holds no token. The work is one read of the tokens
    that are there.
    """
    import torch

    s, lengths = _LAYERS[dtype], lengths_of(batch, longest)
    kept = _tokens_by_row(ctx, s, lengths)
    cache = _filled(ctx, s, kept, (longest, _BLOCKS[impl]))
    positions = torch.tensor(lengths, device=ctx.device) - 1

    def fn(q: Any, k: Any, v: Any) -> Any:
        cache.begin(positions)
        return cache.attend(0, q, k, v)

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        kinds = ((s.heads, _SHARPNESS), (s.kv_heads, 1), (s.kv_heads, 1))
        return tuple(rng.randn(batch, n, s.head, dtype=s.dtype) * gain for n, gain in kinds)

    def wrong(q: Any, k: Any, v: Any) -> Any:
        # The rows' places after one row has left, the lengths before.
        moved = _filled(ctx, s, [*kept[1:], kept[0]], (longest, _BLOCKS[impl]), room=longest)
        moved.begin(positions)
        return moved.attend(0, q, k, v)

    def exact() -> Mapping[str, float]:
        taken = cache.k.nbytes + cache.v.nbytes
        return {
            "kv_bytes": taken,
            "wasted_bytes": taken - sum(lengths) * s.kv_elements * s.item_bytes,
        }

    return Workload(
        fn=fn, make_inputs=make_inputs, reference=_reference_of(kept), wrong=wrong, exact=exact
    )


def _tokens_by_row(ctx: Any, s: Shape, lengths: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return keys and values [kv_heads, length - 1, d] of each row, before its new token."""
    import torch

    generator = torch.Generator(ctx.device).manual_seed(_SEED)
    where = {"device": ctx.device, "generator": generator, "dtype": getattr(torch, s.dtype)}

    def drawn(length: int) -> Any:
        return torch.randn(s.kv_heads, length - 1, s.head, **where)

    return [(drawn(length), drawn(length)) for length in lengths]


def _filled(
    ctx: Any,
    s: Shape,
    kept: Sequence[tuple[Any, Any]],
    layout: tuple[int, int],
    *,
    room: int = 0,
) -> Any:
    """Return a cache that holds ``kept``; layout is (longest, block), block 0 for contiguous.

    Each row gets blocks for its tokens and the new one, or for ``room`` if that is more.
    """
    import torch

    from perfsuite_inference.cache import BlockPool, PagedCache, StaticCache

    longest, block = layout
    dtype, rows = getattr(torch, s.dtype), len(kept)
    cache: Any = None
    if block:
        needed = [-(-max(k.shape[1] + 1, room) // block) for k, _ in kept]
        pool = BlockPool(1 + sum(needed))
        table = torch.zeros(rows, -(-longest // block), dtype=torch.int32, device=ctx.device)
        # Rows grow by turns, so that their blocks lie between each other's.
        for column in range(max(needed)):
            growing = [row for row in range(rows) if needed[row] > column]
            table[growing, column] = table.new_tensor(pool.take(len(growing)))
        kernel: Callable[..., Any] | None = None
        if ctx.device != "cpu":
            from perfsuite_inference.paged_triton import attend_paged

            kernel = attend_paged
        cache = PagedCache(s, table, 1 + sum(needed), block, dtype, kernel=kernel)
    else:
        cache = StaticCache(s, rows, longest, torch.device(ctx.device), dtype)
    for row, (k, v) in enumerate(kept):
        cache.store(0, k[None], v[None], torch.tensor([row], device=ctx.device))
    return cache


def _reference_of(kept: Sequence[tuple[Any, Any]]) -> Any:
    import torch

    from perfsuite_inference import reference

    def expected(q: Any, k: Any, v: Any) -> Any:
        rows = [
            reference.attend(
                q[row][:, None],
                torch.cat((keys, k[row][:, None]), dim=1),
                torch.cat((values, v[row][:, None]), dim=1),
            )[:, 0]
            for row, (keys, values) in enumerate(kept)
        ]
        return torch.stack(rows)

    return expected


_COUNT = (
    "counted: rows are a third of the longest on average, so contiguous attention moves three "
    "times the bytes; half of the ratio is asked for"
)
CASES: tuple[perfsuite.Case | Claim, ...] = (
    kv_cache,
    Claim(
        name="kv_cache_paged",
        case="kv_cache",
        faster={"impl": "paged_16"},
        than={"impl": "contiguous"},
        by=1.5,
        at={"dtype": ("bf16",), "longest": (8192,)},
        needs=(cuda(),),
        source=_COUNT,
    ),
)
