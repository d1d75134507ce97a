"""Chunked prefill over blocks: a prompt's next tokens attend to the earlier ones in their pages."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, Later, torch
from perfsuite_inference import reference
from perfsuite_inference.model import SHARPNESS
from perfsuite_inference.paged_attention import BLOCK, HEADS, KV_HEADS, D, lengths_of, read_tokens

kernels = Later("perfsuite_inference.paged_prefill_triton")
_ITEM = {"bf16": 2, "fp32": 4}
# A step of Sarathi-Serve has 512 or 2048 tokens: of one prompt, or of several.
_LONG: dict[str, Any] = {"dtype": "bf16", "batch": 1, "chunk": 512, "context": 8191}
_SEVERAL: dict[str, Any] = {"dtype": "bf16", "batch": 4, "chunk": 512, "context": 2047}


def _work(dtype: str, batch: int, chunk: int, context: int, impl: str) -> Work:
    lengths, rows = lengths_of(batch, context), _ITEM[dtype] * batch * chunk * HEADS * D
    return Work(
        read_bytes=_ITEM[dtype] * 2 * sum(lengths) * KV_HEADS * D + rows,
        write_bytes=rows,
        # A query sees the keys up to its own.
        flops=2 * HEADS * D * chunk * sum(2 * length - chunk + 1 for length in lengths),
        rate_dtype=dtype,
    )


@operator(
    smoke={"dtype": "bf16", "batch": 2, "chunk": 65, "context": 255, "impl": "triton"},
    nightly=[
        {"dtype": "fp32", "batch": 2, "chunk": 65, "context": 255, "impl": "gather"},
        _LONG,
        {**_SEVERAL, "impl": ["gather", "triton", "flashinfer"]},
    ],
    full={**_LONG, "chunk": 2048, "context": 32767, "impl": ["gather", "triton", "flashinfer"]},
    needs=(package("torch"), cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")),
    work=_work,
    # As of paged_attention; and queries and results, of the reference in float64.
    memory_bytes=lambda dtype, batch, chunk, context, impl: (
        12 * batch * (context + BLOCK) * KV_HEADS * D * _ITEM[dtype]
        + 32 * batch * chunk * HEADS * D
        + reference.SPARE[dtype]
    ),
    cold=False,
    tags=["prefill", "paged", "attention", "tensor-cores"],
    source="Sarathi-Serve (OSDI 2024) for chunks; arXiv:2309.06180 (PagedAttention) for blocks; "
    "Llama-3.1-8B's model card",
)
def paged_prefill(rng: Any, *, dtype: str, batch: int, chunk: int, context: int) -> tuple[Any, ...]:
    """Attend causally from the last ``chunk`` of ``context`` tokens a row, all of them in blocks.

    Llama-3.1-8B's 32 heads of 128 share 8 of keys and values, in blocks of 16 tokens in no order.
    ``gather`` copies a row's blocks together and calls torch's fused attention for each row, with
    lengths that the host knows. ``by_token`` is the kernel that decodes: each token is a row of its
    own, and reads all keys again. ``triton`` has 32 tokens with the four heads that share a key
    head in a tile, and reads the blocks where they lie. ``flashinfer`` is that package's kernel.
    """
    name, most = DTYPES[dtype], -(-context // BLOCK)
    k, v = (rng.randn(1 + 2 * batch * most, KV_HEADS, BLOCK, D, dtype=name) for _ in "kv")
    lengths = torch.tensor(lengths_of(batch, context), device=k.device)
    q = rng.randn(batch * chunk, HEADS, D, dtype=name) * SHARPNESS
    return q, k, v, _table(batch, context, k.device), lengths


def _table(batch: int, context: int, place: Any) -> Any:
    """Return each row's blocks [rows, most]; every other block is somebody else's.

    It is the same each time: flashinfer wants it beforehand.
    """
    most = -(-context // BLOCK)
    order = torch.randperm(2 * batch * most, generator=torch.Generator().manual_seed(1))
    return 1 + order[: batch * most].view(batch, most).int().to(place)


@paged_prefill.reference
def attend_chunks(q: Any, k: Any, v: Any, table: Any, lengths: Any, *, begin: int = -1) -> Any:
    """Return float64 attention of each row's chunk, [rows * chunk, heads, d].

    A chunk's queries are a row's last tokens, or begin at its token ``begin``.
    """
    chunk, found = len(q) // len(table), []
    for part, places, length in zip(q.split(chunk), table.long(), lengths.tolist(), strict=True):
        keys, values = (read_tokens(x, places, length) for x in (k, v))
        tokens = torch.arange(length, device=q.device)
        seen = tokens <= (length - chunk if begin < 0 else begin) + tokens[:chunk, None]
        found.append(reference.attend(part.transpose(0, 1), keys, values, seen).transpose(0, 1))
    return torch.cat(found)


@paged_prefill.wrong
def _counted_from_one(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Count blocks from one."""
    return attend_chunks(q, k, v, table - 1, lengths).to(q.dtype)


@paged_prefill.wrong
def _as_if_first(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Put a chunk at its prompt's beginning: it sees no chunk before it."""
    return attend_chunks(q, k, v, table, lengths, begin=0).to(q.dtype)


@paged_prefill.wrong
def _unmasked(q: Any, k: Any, v: Any, table: Any, lengths: Any, *, context: int) -> Any:
    """Let a chunk's tokens see those after them."""
    return attend_chunks(q, k, v, table, lengths, begin=context).to(q.dtype)


@paged_prefill.impl
def _gather(ctx: Any, *, batch: int, context: int) -> Any:
    lower, each = Later("torch.nn.attention.bias").causal_lower_right, lengths_of(batch, context)
    attend = torch.nn.functional.scaled_dot_product_attention

    def launch(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        # [rows, most, kv_heads, block, d] to [rows, kv_heads, most * block, d]
        k, v = (x[table.long()].transpose(1, 2).flatten(2, 3) for x in (k, v))
        q, out = (x.unflatten(0, (batch, -1)).transpose(1, 2) for x in (q, torch.empty_like(q)))
        for row, length in enumerate(each):
            of = slice(row, row + 1)
            mask = lower(q.shape[2], length)
            keys, values = (x[of, :, :length] for x in (k, v))
            out[of] = attend(q[of], keys, values, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    return launch


@paged_prefill.impl(needs=[package("triton"), cuda()])
def _by_token(ctx: Any, *, chunk: int) -> Any:
    attend = Later("perfsuite_inference.paged_triton").attend_paged

    def launch(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        later = torch.arange(1 - chunk, 1, device=q.device)
        own = (lengths[:, None] + later).flatten()
        return attend(q, k, v, table.repeat_interleave(chunk, 0), own)

    return launch


@paged_prefill.impl(
    needs=[package("triton"), cuda()],
    beats=[
        Beats(
            "by_token",
            2.0,
            "counted: the four heads that share a key head fill 4 of the 16 rows that a product "
            "has, so that a token by itself costs four times the products; 2 is asked for",
            at={"chunk": 512, "context": 8191},
        ),
        Beats(
            "gather",
            4.0,
            "counted: copies of 8191 keys and values are eight times a result of 512 rows and of "
            "four times the heads; half of that is asked for",
            at={"chunk": 512, "context": 8191},
            metric="peak_bytes",
            name="paged_prefill_memory",
        ),
    ],
)
def _triton(ctx: Any) -> Any:
    return kernels.attend_chunk


@paged_prefill.impl(needs=[cuda(), package("flashinfer")])
def _flashinfer(ctx: Any, *, batch: int, chunk: int, context: int) -> Any:
    space = torch.empty(128 << 20, dtype=torch.uint8, device=ctx.place)
    made = Later("flashinfer").BatchPrefillWithPagedKVCacheWrapper(space, "HND")
    lengths = torch.tensor(lengths_of(batch, context), device=ctx.place)
    blocks = (lengths + BLOCK - 1) // BLOCK
    table = _table(batch, context, ctx.place)
    own = torch.arange(table.shape[1], device=ctx.place) < blocks[:, None]
    bounds = (
        torch.nn.functional.pad(x.cumsum(0), (1, 0)).int() for x in (lengths * 0 + chunk, blocks)
    )
    made.plan(
        *bounds, table[own], ((lengths - 1) % BLOCK + 1).int(), HEADS, KV_HEADS, D, BLOCK,
        causal=True, q_data_type=torch.bfloat16,
    )  # fmt: skip
    return lambda q, k, v, *_: made.run(q, (k, v))
