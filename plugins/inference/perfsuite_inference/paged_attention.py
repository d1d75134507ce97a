"""Decode attention over blocks: gathered into a contiguous copy first, or read where they lie."""

from typing import Any

from perfsuite import Beats, Work, cuda, operator, package
from perfsuite.gpu import DTYPES, torch
from perfsuite_inference import reference
from perfsuite_inference.cache import attend_gathered
from perfsuite_inference.model import SHARPNESS

# Llama-3.1-8B's, of one layer.
HEADS, KV_HEADS, D, BLOCK = 32, 8, 128, 16
_ITEM = {"bf16": 2, "fp32": 4}


def lengths_of(batch: int, context: int) -> list[int]:
    """Return the tokens of each row: ``context``, and up to a block less by turns."""
    return [max(1, context - row % BLOCK) for row in range(batch)]


def _work(dtype: str, batch: int, context: int, impl: str) -> Work:
    item, tokens = _ITEM[dtype], sum(lengths_of(batch, context))
    return Work(
        read_bytes=item * (2 * tokens * KV_HEADS * D + batch * HEADS * D),
        write_bytes=item * batch * HEADS * D,
        flops=4 * tokens * HEADS * D,
        rate_dtype=dtype,
    )


@operator(
    smoke={"dtype": "fp32", "batch": 3, "context": 255, "impl": "triton"},
    nightly=[
        {"dtype": "fp32", "batch": 3, "context": 255, "impl": "gather"},
        {"dtype": "bf16", "batch": 1, "context": 32767},
        {"dtype": "bf16", "batch": 16, "context": 8191},
        {"dtype": "bf16", "batch": 64, "context": 2047},
    ],
    needs=(package("torch"), cuda().when(dtype="bf16")),
    work=_work,
    # The blocks, half of them somebody else's, twice as the check has other data beside, the copy
    # in its two layouts, which the negative control makes too, and one row of the reference.
    memory_bytes=lambda dtype, batch, context, impl: (
        12 * batch * (context + BLOCK) * KV_HEADS * D * _ITEM[dtype] + reference.SPARE[dtype]
    ),
    cold=False,
    tags=["decode", "paged", "attention"],
    source="arXiv:2309.06180 (PagedAttention); Flash-Decoding (T. Dao et al., 2023); chapter 10 of "
    "the book",
)
def paged_attention(rng: Any, *, dtype: str, batch: int, context: int) -> tuple[Any, ...]:
    """Attend from one token a row to a paged context: 32 heads of 128 share 8 of keys and values.

    Blocks of 16 tokens lie in random order. ``gather`` copies a row's blocks together and calls
    torch's fused attention with a mask. ``triton`` reads the blocks through the table and splits
    each row over several programs, so that one long row fills the GPU; a second kernel joins the
    parts. The work is one read of the keys and values of all rows, which are of odd lengths.
    """
    name, most = DTYPES[dtype], -(-context // BLOCK)
    # Every other block is somebody else's: attention does not know an order, so that a wrong one
    # of this row's own would not be seen.
    blocks = 2 * batch * most
    k, v = (rng.randn(1 + blocks, KV_HEADS, BLOCK, D, dtype=name) for _ in "kv")
    table = 1 + rng.rand(blocks).argsort()[: batch * most].view(batch, most).int()
    lengths = torch.tensor(lengths_of(batch, context), device=k.device)
    return rng.randn(batch, HEADS, D, dtype=name) * SHARPNESS, k, v, table, lengths


@paged_attention.reference
def attend_rows(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Return the float64 attention of each row of q, its tokens picked from the blocks one by one.

    q is [rows, heads, d], k and v are [blocks, kv_heads, block, d], table is [rows, most].
    """
    block, found = k.shape[2], []
    for one, places, length in zip(q, table.long(), lengths.tolist(), strict=True):
        tokens = torch.arange(length, device=q.device)
        at = places[tokens // block], tokens % block
        keys, values = (x.transpose(1, 2)[at].transpose(0, 1) for x in (k, v))
        found.append(reference.attend_one(one, keys, values))
    return torch.stack(found)


@paged_attention.wrong
def _counted_from_one(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Count blocks from one, as a table of an allocator without block 0 has it."""
    return attend_gathered(q, k, v, table - 1, lengths)


paged_attention.impl(attend_gathered, name="gather")


@paged_attention.impl(
    needs=[package("triton"), cuda()],
    beats=Beats(
        "gather",
        3.0,
        # Bytes of keys and values: gathering reads them, writes a copy and reads that; 1 against 3.
        "counted: gathering moves the keys and values three times, the kernel once",
        at={"dtype": "bf16"},
        needs=(cuda(),),
    ),
)
def _triton(ctx: Any) -> Any:
    from perfsuite_inference.paged_triton import attend_paged

    return attend_paged
