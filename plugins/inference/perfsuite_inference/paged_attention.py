"""Decode attention over blocks: gathered into a contiguous copy first, or read where they lie."""

from functools import partial
from typing import Any

from perfsuite import Beats, Claim, Work, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, Later, torch
from perfsuite_inference import reference
from perfsuite_inference.cache import attend_gathered
from perfsuite_inference.model import SHARPNESS

kernels = Later("perfsuite_inference.paged_triton")
# Llama-3.1-8B's, of one layer.
HEADS, KV_HEADS, D, BLOCK = 32, 8, 128, 16
# Of keys and values; queries and results beside fp8 are in bf16.
_ITEM = {"bf16": 2, "fp32": 4, "fp8": 1}
_QUERY = {"bf16": "bf16", "fp32": "fp32", "fp8": "bf16"}
# Of e4m3; and of what it stands for, with a normal distribution's ends cut off.
LARGEST, MOST = 448.0, 5.0
_PLAIN = ["gather", "triton"]


def lengths_of(batch: int, context: int) -> list[int]:
    """Return the tokens of each row: ``context``, and up to a block less by turns."""
    return [max(1, context - row % BLOCK) for row in range(batch)]


def _work(dtype: str, batch: int, context: int, impl: str) -> Work:
    tokens, rows = sum(lengths_of(batch, context)), _ITEM[_QUERY[dtype]] * batch * HEADS * D
    return Work(
        read_bytes=_ITEM[dtype] * 2 * tokens * KV_HEADS * D + rows,
        write_bytes=rows,
        flops=4 * tokens * HEADS * D,
        rate_dtype=_QUERY[dtype],
    )


@operator(
    smoke={"dtype": "fp32", "batch": 3, "context": 255, "impl": "triton"},
    nightly=[
        {"dtype": "fp32", "batch": 3, "context": 255, "impl": "gather"},
        {"dtype": "bf16", "batch": 1, "context": 32767},
        {"dtype": "bf16", "batch": 16, "context": 8191, "impl": _PLAIN},
        {"dtype": "bf16", "batch": 64, "context": 2047, "impl": _PLAIN},
        {"dtype": "fp8", "batch": 16, "context": 8191, "impl": "triton"},
        {"dtype": "fp8", "batch": 64, "context": 2047, "impl": "triton"},
    ],
    full={"dtype": "fp8", "batch": 1, "context": 32767, "impl": ["triton", "one_block"]},
    needs=(package("torch"), cuda().when(dtype=("bf16", "fp8")), arch("sm_89+").when(dtype="fp8")),
    work=_work,
    # The blocks, half of them somebody else's, twice as the check has other data beside, the copy
    # in its two layouts, which the negative control makes too, and one row of the reference.
    memory_bytes=lambda dtype, batch, context, impl: (
        12 * batch * (context + BLOCK) * KV_HEADS * D * _ITEM[_QUERY[dtype]]
        + reference.SPARE[_QUERY[dtype]]
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
    parts. ``one_block`` is the same kernel with one program for a row's key head. With ``fp8`` keys
    and values are e4m3 with a scale for each head, which is half the bytes; queries stay in bf16.
    The work is one read of the keys and values of all rows, which are of odd lengths.
    """
    name, most = DTYPES[_QUERY[dtype]], -(-context // BLOCK)
    # Every other block is somebody else's: attention does not know an order, so that a wrong one
    # of this row's own would not be seen.
    blocks = 2 * batch * most
    k, v = (rng.randn(1 + blocks, KV_HEADS, BLOCK, D, dtype=name) for _ in "kv")
    table = 1 + rng.rand(blocks).argsort()[: batch * most].view(batch, most).int()
    lengths = torch.tensor(lengths_of(batch, context), device=k.device)
    q = rng.randn(batch, HEADS, D, dtype=name) * SHARPNESS
    if dtype != "fp8":
        return q, k, v, table, lengths
    # Heads of different sizes, so that one with another's scale is seen.
    sizes = torch.linspace(0.5, 1.5, KV_HEADS, device=k.device) * (MOST / LARGEST)
    codes = ((x * (LARGEST / MOST)).clamp_(-LARGEST, LARGEST) for x in (k, v))
    k, v = (x.to(torch.float8_e4m3fn) for x in codes)
    return q, k, v, table, lengths, torch.stack((sizes, sizes.flip(0)))


@paged_attention.reference
def attend_rows(q: Any, k: Any, v: Any, table: Any, lengths: Any, scales: Any = None) -> Any:
    """Return the float64 attention of each row of q, its tokens picked from the blocks one by one.

    q is [rows, heads, d], k and v are [blocks, kv_heads, block, d], table is [rows, most]. What
    is in fp8 counts ``scales`` [2, kv_heads].
    """
    found, kind = [], k.dtype
    each = (1.0, 1.0) if scales is None else scales.double()[..., None, None]
    if scales is not None:
        k, v = (x.view(torch.uint8) for x in (k, v))  # torch indexes no fp8 everywhere
    for one, places, length in zip(q, table.long(), lengths.tolist(), strict=True):
        keys, values = (
            read_tokens(x, places, length).view(kind).double() * scale
            for x, scale in zip((k, v), each, strict=True)
        )
        found.append(reference.attend_one(one, keys, values))
    return torch.stack(found)


def read_tokens(x: Any, places: Any, length: int) -> Any:
    """Return a row's tokens [kv_heads, length, d], picked from the blocks ``places`` one by one."""
    tokens = torch.arange(length, device=x.device)
    return x.transpose(1, 2)[places[tokens // x.shape[2]], tokens % x.shape[2]].transpose(0, 1)


@paged_attention.wrong
def _counted_from_one(q: Any, k: Any, v: Any, table: Any, *rest: Any) -> Any:
    """Count blocks from one, as a table of an allocator without block 0 has it."""
    return attend_rows(q, k, v, table - 1, *rest).to(q.dtype)


@paged_attention.wrong
def _of_the_next_head(q: Any, k: Any, v: Any, table: Any, lengths: Any, *scales: Any) -> Any:
    """Give a head the scales of the next, or its values where there are none."""
    v = v if scales else v.roll(1, 1)
    return attend_rows(q, k, v, table, lengths, *(x.roll(1, 1) for x in scales)).to(q.dtype)


paged_attention.impl(attend_gathered, name="gather")


@paged_attention.impl(needs=[package("triton"), cuda()])
def _one_block(ctx: Any) -> Any:
    return partial(kernels.attend_paged, splits=1)


@paged_attention.impl(
    needs=[package("triton"), cuda()],
    beats=[
        Beats(
            "gather",
            3.0,
            # Bytes of keys and values: gathering reads them, writes a copy and reads that.
            "counted: gathering moves the keys and values three times, the kernel once",
            at={"dtype": "bf16"},
        ),
        Beats(
            "one_block",
            8.0,
            "Flash-Decoding (T. Dao et al., 2023): decoding up to 8 times as fast for very long "
            "sequences, its attention up to 50 times; 8 is asked for",
            at={"dtype": "bf16", "batch": 1, "context": 32767},
            name="flash_decoding",
        ),
    ],
)
def _triton(ctx: Any) -> Any:
    return kernels.attend_paged


FP8 = Claim(
    name="paged_attention_fp8",
    case="paged_attention",
    faster={"dtype": "fp8"},
    than={"dtype": "bf16"},
    by=1.5,
    at={"impl": ("triton",), "batch": (16, 64)},
    source="counted: keys and values in fp8 are half the bytes; three quarters of 2 are asked for",
)
