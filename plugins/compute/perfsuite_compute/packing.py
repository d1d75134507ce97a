"""Sequences of different lengths packed behind each other, and padded again."""

import itertools
from functools import partial
from typing import Any

from perfsuite import Beats, Work, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, matmul64, torch
from perfsuite_compute.attention_varlen import LENGTHS

kernels = Later("perfsuite_compute.packing_triton")
# Widths of hidden states, and the prompts.
MODELS = {"llama3-8b": (4096, "chat"), "tiny": (136, "small")}
_USUAL: dict[str, Any] = {"dtype": "bf16", "model": "llama3-8b"}
_SMALL: dict[str, Any] = {"dtype": "fp32", "model": "tiny"}


def _sizes(model: str) -> tuple[int, int, int]:
    """Return the width, the tokens that are packed, and those of the padded batch."""
    width, prompts = MODELS[model]
    lengths = LENGTHS[prompts]
    return width, sum(lengths), len(lengths) * max(lengths)


def _work(dtype: str, op: str, model: str, impl: str) -> Work:
    width, tokens, padded = _sizes(model)
    row = width * (2 if dtype == "bf16" else 4)
    if op == "unpad":
        return Work(row * tokens + padded, row * tokens + 8 * tokens)
    weight = row * width if op == "linear" else 0
    flops = 2 * tokens * width**2 if op == "linear" else 0
    return Work(row * tokens + padded + weight, row * padded, flops, rate_dtype=dtype)


def _memory_bytes(dtype: str, op: str, model: str, impl: str) -> int:
    width, _, padded = _sizes(model)
    # Products in the dtype and float64.
    return width * padded * (40 if op == "linear" else 16) + (1 << 30)


@operator(
    smoke={**_SMALL, "op": ["unpad", "pad"], "impl": "gather"},
    nightly=[
        {**_USUAL, "op": ["unpad", "pad"], "impl": ["gather", "nested", "triton"]},
        {**_USUAL, "op": "linear", "impl": ["padded", "gather", "triton"]},
    ],
    full={**_SMALL, "op": ["unpad", "pad", "linear"], "impl": ["gather", "nested"]},
    needs=[cuda().when(dtype="bf16")],
    work=_work,
    memory_bytes=_memory_bytes,
    # Rows are moved as they are.
    tolerance=lambda *, op: None if op == "linear" else 0.0,
    tags=["packing", "load_balance"],
    source="flash-attn's unpad_input and pad_input; ByteTransformer (arXiv:2210.03052); "
    "Llama-3-8B's model card",
)
def packing(rng: Any, *, dtype: str, op: str, model: str) -> tuple[Any, ...]:
    """Pack 22 prompts of 7 to 4096 tokens out of a padded batch (``unpad``), or ``pad`` them.

    With padding, on the right, there are 5.5 times the tokens. ``unpad`` makes of a mask the bounds
    of sequences (cu_seqlens) and each token's position, too. ``linear`` packs, multiplies by a
    square weight and pads, where ``padded`` multiplies all there is. ``gather`` copies by index, as
    flash-attn does, and waits for how many tokens there are. ``nested`` is what PyTorch's jagged
    tensors are made and padded by. ``triton`` finds a token's row among the bounds, and writes
    zeros and tokens in one pass.
    """
    (width, tokens, padded), batch = _sizes(model), len(LENGTHS[MODELS[model][1]])
    sizes = (tokens,) if op == "pad" else (batch, padded // batch)
    x = rng.randn(*sizes, width, dtype=DTYPES[dtype])
    lengths = torch.tensor(LENGTHS[MODELS[model][1]], device=x.device)
    mask = torch.arange(padded // batch, device=x.device) < lengths[:, None]
    if op == "pad":
        return x, mask, _bounds(mask)
    if op == "unpad":
        return x, mask
    return x.mul_(mask[..., None]), mask, rng.randn(width, width, dtype=DTYPES[dtype])


def _bounds(mask: Any) -> Any:
    ends = mask.sum(1).cumsum(0)
    return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)


def _padded_rows(packed: Any, lengths: list[int], longest: int) -> Any:
    out = packed.new_zeros(len(lengths), longest, packed.shape[1])
    for row, part in zip(out, packed.split(lengths), strict=True):
        row[: len(part)] = part
    return out


@packing.reference
def _reference(x: Any, mask: Any, *rest: Any, op: str) -> Any:
    """Go row by row, with lengths that the host knows."""
    lengths, longest = mask.sum(1).tolist(), mask.shape[1]
    if op == "pad":
        return _padded_rows(x, lengths, longest)
    packed = torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)])
    if op == "linear":
        return _padded_rows(matmul64(packed, rest[0].t()), lengths, longest)
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=x.device)
    return packed, bounds, torch.cat([torch.arange(n, device=x.device) for n in lengths])


@packing.wrong
def _a_token_late(x: Any, mask: Any, *rest: Any, op: str) -> Any:
    """Begin each row with its second token, or one place later."""
    if op == "unpad":
        return _reference(x.roll(-1, 1), mask, *rest, op=op)
    return _reference(x, mask, *rest, op=op).roll(1, 1).to(x.dtype)


@packing.wrong
def _counted_through(x: Any, mask: Any, *rest: Any, op: str) -> Any:
    """Count positions through all rows; put padding on the left."""
    found = _reference(x, mask, *rest, op=op)
    if op == "unpad":
        packed, bounds, positions = found
        return packed, bounds, torch.arange(len(positions), device=x.device)
    rows = zip(found, mask.sum(1).tolist(), strict=True)
    return torch.stack([row.roll(-length, 0) for row, length in rows]).to(x.dtype)


def _walked(unpad: Any, pad: Any, x: Any, mask: Any, *rest: Any, op: str, model: str) -> Any:
    """Pack, pad, or pack, multiply and pad: bounds that packing made are padding's, too."""
    if op == "pad":
        return pad(x, mask, *rest)
    bounds = _bounds(mask)
    packed, positions = unpad(x, mask, bounds, _sizes(model)[1])
    if op == "unpad":
        return packed, bounds, positions
    return pad(torch.nn.functional.linear(packed, *rest), mask, bounds)


def _positions(mask: Any) -> Any:
    return mask.cumsum(1) - 1


def _unpad_by_index(x: Any, mask: Any, *_: Any) -> Any:
    index = mask.flatten().nonzero()
    each = index.expand(-1, x.shape[2])
    return x.flatten(0, 1).gather(0, each), _positions(mask).flatten()[index[:, 0]]


def _pad_by_index(packed: Any, mask: Any, bounds: Any) -> Any:
    out = packed.new_zeros(mask.numel(), packed.shape[1])
    out[mask.flatten().nonzero()[:, 0]] = packed
    return out.view(*mask.shape, -1)


def _unpad_jagged(x: Any, mask: Any, bounds: Any, tokens: int) -> Any:
    to_jagged, places = torch.ops.aten._padded_dense_to_jagged_forward, _positions(mask)  # noqa: SLF001
    rows = to_jagged(places[..., None].float(), [bounds], tokens)
    return to_jagged(x, [bounds], tokens), rows[:, 0].long()


def _pad_jagged(packed: Any, mask: Any, bounds: Any) -> Any:
    made = torch.nested.nested_tensor_from_jagged(packed, bounds, max_seqlen=mask.shape[1])
    return made.to_padded_tensor(0.0)


packing.impl(partial(_walked, _unpad_by_index, _pad_by_index), name="gather")
packing.impl(partial(_walked, _unpad_jagged, _pad_jagged), name="nested")


@packing.impl
def _padded(x: Any, mask: Any, weight: Any) -> Any:
    return torch.nn.functional.linear(x, weight)


@packing.impl(
    needs=TRITON,
    beats=Beats(
        "padded",
        2.0,
        "ByteTransformer (arXiv:2210.03052) for products without padding; counted: with "
        "padding there are 5.5 times the tokens; packing and padding take a third as long as the "
        "products, so that 4 are left; half of that is asked for",
        at={"op": "linear", "model": "llama3-8b"},
    ),
)
def _triton(ctx: Any, *, op: str, model: str) -> Any:
    return partial(_walked, kernels.unpad, kernels.pad, op=op, model=model)
