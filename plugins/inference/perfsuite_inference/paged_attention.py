"""Decode attention over blocks: gathered into a contiguous copy first, or read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, cuda, package

# Llama-3.1-8B's, of one layer.
HEADS, KV_HEADS, D, BLOCK = 32, 8, 128, 16
_SEED = 0
# Scores then spread by 2.5, so that some tokens stand out of a long context.
_SHARPNESS = 2.5
_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
# Bytes for one row of the float64 reference and its scores; fp32 is that of the smoke tier.
_SPARE = {"bf16": 2 << 30, "fp32": 64 << 20}
_SHAPES = {(1, 32767), (16, 8191), (64, 2047), (3, 255)}


def lengths_of(batch: int, context: int) -> list[int]:
    """Return the tokens of each row: ``context``, and up to a block less by turns."""
    return [max(1, context - row % BLOCK) for row in range(batch)]


def _work(dtype: str, batch: int, context: int, impl: str) -> Work:
    item, tokens = _DTYPES[dtype][1], sum(lengths_of(batch, context))
    return Work(
        read_bytes=item * (2 * tokens * KV_HEADS * D + batch * HEADS * D),
        write_bytes=item * batch * HEADS * D,
        flops=4 * tokens * HEADS * D,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, batch: int, context: int, impl: str) -> int:
    # The blocks, half of them somebody else's, the copy in its two layouts, which the negative
    # control makes too, and one row of the float64 reference.
    copies = 8
    return batch * (context + BLOCK) * KV_HEADS * D * _DTYPES[dtype][1] * copies + _SPARE[dtype]


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "batch": [1, 16, 64],
        "context": [2047, 8191, 32767],
        "impl": ["gather", "triton"],
    },
    smoke={"dtype": ["fp32"], "batch": [3], "context": [255]},
    only=lambda dtype, batch, context, impl: (batch, context) in _SHAPES,
    waits=lambda impl, **_: impl == "gather",
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        cuda().when(impl="triton"),
        cuda().when(dtype="bf16"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    cold=False,
    tags=["decode", "paged", "attention"],
    source="arXiv:2309.06180 (PagedAttention); Flash-Decoding (T. Dao et al., 2023); chapter 10 of "
    "the book",
)
def paged_attention(ctx: Any, dtype: str, batch: int, context: int, impl: str) -> Workload:
    """Attend from one token a row to a paged context: 32 heads of 128 share 8 of keys and values.

    Blocks of 16 tokens lie in random order. ``gather`` copies a row's blocks together and calls
    torch's fused attention with a mask. ``triton`` reads the blocks through the table and splits
    each row over several programs, so that one long row fills the GPU; a second kernel joins the
    parts. The work is one read of the keys and values of all rows, which are of odd lengths.
    """
    from perfsuite_inference.cache import attend_gathered

    k, v, table, lengths = _blocks(ctx, dtype, batch, context)
    attend: Callable[..., Any] = attend_gathered
    if impl == "triton":
        from perfsuite_inference.paged_triton import attend_paged as attend

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        return (rng.randn(batch, HEADS, D, dtype=_DTYPES[dtype][0]) * _SHARPNESS,)

    return Workload(
        fn=lambda q: attend(q, k, v, table, lengths),
        make_inputs=make_inputs,
        reference=lambda q: attend_rows(q, k, v, table, lengths.tolist()),
        # Blocks counted from one, as a table of an allocator without block 0 has it.
        wrong=lambda q: attend_gathered(q, k, v, table - 1, lengths),
    )


def _blocks(ctx: Any, dtype: str, batch: int, context: int) -> tuple[Any, ...]:
    """Return k, v [blocks, kv_heads, block, d], a table of blocks in random order and lengths.

    Every other block is somebody else's: attention does not know an order, so that a wrong one
    of this row's own would not be seen.
    """
    import torch

    most = -(-context // BLOCK)
    generator = torch.Generator(ctx.device).manual_seed(_SEED)
    where = {"device": ctx.device, "generator": generator}
    blocks = 1 + 2 * batch * most
    sizes = (blocks, KV_HEADS, BLOCK, D)
    k, v = (torch.randn(sizes, dtype=getattr(torch, _DTYPES[dtype][0]), **where) for _ in "kv")
    table = (1 + torch.randperm(blocks - 1, **where))[: batch * most].view(batch, most).int()
    return k, v, table, torch.tensor(lengths_of(batch, context), device=ctx.device)


def attend_rows(q: Any, k: Any, v: Any, table: Any, lengths: Sequence[int]) -> Any:
    """Return the float64 attention of each row of q, its tokens picked from the blocks one by one.

    q is [rows, heads, d], k and v are [blocks, kv_heads, block, d], table is [rows, most].
    """
    import torch

    from perfsuite_inference import reference

    rows = []
    for row, length in enumerate(lengths):
        tokens = torch.arange(length, device=q.device)
        block = k.shape[2]
        at = table[row].long()[tokens // block], tokens % block
        keys, values = (x.transpose(1, 2)[at].transpose(0, 1) for x in (k, v))
        rows.append(reference.attend(q[row][:, None], keys, values)[:, 0])
    return torch.stack(rows)


# Bytes of keys and values moved: gathering reads them, writes a copy and reads that; 1 against 3.
_COUNT = (
    "counted: gathering moves the keys and values three times, the kernel once; half of the "
    "ratio is asked for"
)
CASES: tuple[perfsuite.Case | Claim, ...] = (
    paged_attention,
    Claim(
        name="paged_attention_triton",
        case="paged_attention",
        faster={"impl": "triton"},
        than={"impl": "gather"},
        by=1.5,
        at={"dtype": ("bf16",)},
        needs=(cuda(),),
        source=_COUNT,
    ),
)
