"""Where the keys and values of a batch of mixed lengths lie, and how much of that lies idle."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from perfsuite import Claim, Metric, Work, Workload, case, cuda, package
from perfsuite.gpu import DTYPES, torch
from perfsuite_inference import reference
from perfsuite_inference.cache import PagedCache, StaticCache
from perfsuite_inference.model import SHARPNESS, Shape

# One layer of Llama-3.1-8B; its matrices play no part.
_LAYERS = {
    dtype: Shape(1, 4096, 32, 8, 128, 14336, 128256, dtype=dtype) for dtype in ("bf16", "fp32")
}
_BLOCKS = {"contiguous": 0, "paged_16": 16, "paged_64": 64}
_SMALL: dict[str, Any] = {"dtype": "fp32", "batch": 8, "longest": 256}
# Keys and values [kv_heads, length - 1, d] of a row, before its new token.
Row = tuple[Any, Any]


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
    return 6 * batch * (longest + 64) * s.kv_elements * s.item_bytes + reference.SPARE[dtype]


@case(
    smoke={**_SMALL, "impl": ["contiguous", "paged_16"]},
    nightly=[
        {**_SMALL, "impl": "paged_64"},
        {"dtype": "bf16", "batch": 32, "longest": [2048, 8192], "impl": [*_BLOCKS]},
    ],
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
    s, lengths, block = _LAYERS[dtype], lengths_of(batch, longest), _BLOCKS[impl]
    generator = torch.Generator(ctx.device).manual_seed(0)
    where = {"device": ctx.device, "generator": generator, "dtype": s.kind}
    sizes = [(s.kv_heads, length - 1, s.head) for length in lengths]
    kept = [(torch.randn(size, **where), torch.randn(size, **where)) for size in sizes]
    positions = torch.tensor(lengths, device=ctx.device) - 1

    def filled(rows: Sequence[Row], room: int = 0) -> Any:
        if block:
            cache: Any = _paged(
                ctx, s, [max(k.shape[1] + 1, room) for k, _ in rows], longest, block
            )
        else:
            cache = StaticCache(s, batch, longest, ctx.device)
        for row, (k, v) in enumerate(rows):
            cache.store(0, k[None], v[None], torch.tensor([row], device=ctx.device))
        cache.begin(positions)
        return cache

    cache = filled(kept)

    def launch(q: Any, k: Any, v: Any) -> Any:
        cache.begin(positions)
        return cache.attend(0, q, k, v)

    def inputs(rng: Any) -> tuple[Any, ...]:
        kinds = ((s.heads, SHARPNESS), (s.kv_heads, 1), (s.kv_heads, 1))
        return tuple(rng.randn(batch, n, s.head, dtype=DTYPES[dtype]) * gain for n, gain in kinds)

    def expected(q: Any, k: Any, v: Any) -> Any:
        rows = zip(q, k[:, :, None], v[:, :, None], kept, strict=True)
        found = [
            reference.attend_one(one, torch.cat((keys, key), 1), torch.cat((values, value), 1))
            for one, key, value, (keys, values) in rows
        ]
        return torch.stack(found)

    def wrong(q: Any, k: Any, v: Any) -> Any:
        # The rows' places after one row has left, the lengths before.
        return filled([*kept[1:], kept[0]], room=longest).attend(0, q, k, v)

    def exact() -> dict[str, float]:
        taken = cache.k.nbytes + cache.v.nbytes
        held = sum(lengths) * s.kv_elements * s.item_bytes
        return {"kv_bytes": taken, "wasted_bytes": taken - held}

    return Workload(fn=launch, make_inputs=inputs, reference=expected, wrong=wrong, exact=exact)


def _paged(ctx: Any, s: Shape, lengths: Sequence[int], longest: int, block: int) -> PagedCache:
    """Return a cache with blocks for rows of these lengths."""
    needed = [-(-length // block) for length in lengths]
    table = torch.zeros(len(needed), -(-longest // block), dtype=torch.int32, device=ctx.device)
    # Rows grow by turns, so that their blocks lie between each other's; block 0 is nobody's.
    free = count(1)
    for column in range(max(needed)):
        growing = [row for row, blocks in enumerate(needed) if blocks > column]
        table[growing, column] = table.new_tensor([next(free) for _ in growing])
    if ctx.device == "cpu":
        return PagedCache(s, table, block)
    from perfsuite_inference.paged_triton import attend_paged

    return PagedCache(s, table, block, attend_paged)


PAGED = Claim(
    name="kv_cache_paged",
    case="kv_cache",
    faster={"impl": "paged_16"},
    than={"impl": "contiguous"},
    by=1.5,
    at={"dtype": ("bf16",), "longest": (8192,)},
    source="counted: rows are a third of the longest on average, so contiguous attention moves "
    "three times the bytes; half of the ratio is asked for",
)
