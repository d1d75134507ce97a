"""Three caches for keys and values: concatenated, static and paged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfsuite.gpu import compiled, torch
from perfsuite_inference.model import Shape


class ConcatCache:
    """Keys and values as one tensor a layer, copied to a longer one at every step.

    All rows have the same length. Steps need new memory each, so no CUDA graph can hold them.
    """

    def __init__(self, kept: Sequence[tuple[Any, Any] | None]) -> None:
        self._kept = list(kept)

    def fork(self) -> ConcatCache:
        """Return a cache with the same contents that grows on its own; no tensor is copied."""
        return ConcatCache(self._kept)

    def store(self, layer: int, k: Any, v: Any, rows: Any) -> None:  # noqa: ARG002 - as others
        """Keep a prompt's keys and values [b, kv_heads, s, d]; rows are all rows in order."""
        self._kept[layer] = (k.contiguous(), v.contiguous())

    def begin(self, positions: Any) -> None:
        """Do nothing: the tensors' length is where the new token goes."""

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Append k, v [b, kv_heads, d] and attend to everything."""
        k, v = k[:, :, None], v[:, :, None]
        if before := self._kept[layer]:
            k, v = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
        self._kept[layer] = (k, v)
        return attend_row(q, k, v)


class StaticCache:
    """Keys and values [rows, kv_heads, length, d] allocated once; each row has its own position.

    A step attends over the whole length with a mask, so its kernels and addresses are the same
    every time and a CUDA graph can hold it. A row is a slot: a new prompt may take it at any time.
    """

    def __init__(self, shape: Shape, rows: int, length: int, device: Any) -> None:
        sizes = (shape.layers, rows, shape.kv_heads, length, shape.head)
        # Zeros, not whatever was there: a masked NaN would still spoil the sum.
        self.k, self.v = (torch.zeros(sizes, device=device, dtype=shape.kind) for _ in "kv")
        self._rows = torch.arange(rows, device=device)
        self._columns = torch.arange(length, device=device)
        self._positions = self._mask = None

    def fork(self) -> StaticCache:
        """Return the cache itself: each step writes where the one before it did."""
        return self

    def store(self, layer: int, k: Any, v: Any, rows: Any) -> None:
        """Keep a prompt's keys and values [b, kv_heads, s, d] in these rows."""
        self.k[layer, rows, :, : k.shape[2]] = k
        self.v[layer, rows, :, : v.shape[2]] = v

    def begin(self, positions: Any) -> None:
        """Make the mask of this step, once for all layers."""
        self._positions = positions
        self._mask = mask_after(positions, self._columns, self.k.dtype)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Write k, v [b, kv_heads, d] at the positions and attend up to them."""
        self.k[layer, self._rows, :, self._positions] = k
        self.v[layer, self._rows, :, self._positions] = v
        return attend_row(q, self.k[layer], self.v[layer], self._mask)


class PagedCache:
    """Keys and values in blocks [blocks, kv_heads, block, d] that a table [rows, most] points to.

    Position p of a row lies in block ``table[row, p // block]`` at ``p % block``. Block 0 belongs
    to nobody: entries of the table that stand for nothing point to it. ``kernel`` attends through
    the table; without one, blocks are gathered into a contiguous copy first. Source: W. Kwon et
    al., Efficient Memory Management for Large Language Model Serving with PagedAttention
    (arXiv:2309.06180).
    """

    def __init__(
        self, shape: Shape, table: Any, block: int, kernel: Callable[..., Any] | None = None
    ) -> None:
        blocks = 1 + int(table.max())
        sizes = (shape.layers, blocks, shape.kv_heads, block, shape.head)
        self.k, self.v = (torch.zeros(sizes, device=table.device, dtype=shape.kind) for _ in "kv")
        self.table, self.block = table, block
        self._kernel = kernel or attend_gathered
        self._find: Any = places
        self._write: Any = write_tokens
        self._at: list[Any] = []
        self._lengths: Any = None

    def fork(self) -> PagedCache:
        """Return the cache itself: each step writes where the one before it did."""
        return self

    def fuse(self) -> None:
        """Compile how a token's place is found and written: fewer launches in each layer."""
        self._find, self._write = compiled(places), compiled(write_tokens)

    def store(self, layer: int, k: Any, v: Any, rows: Any) -> None:
        """Keep a prompt's keys and values [b, kv_heads, s, d] in the blocks of these rows."""
        positions = torch.arange(k.shape[2], device=k.device)
        blocks = self.table[rows][:, positions // self.block].long()
        inside = (positions % self.block).expand_as(blocks)
        self.k[layer, blocks, :, inside] = k.transpose(1, 2)
        self.v[layer, blocks, :, inside] = v.transpose(1, 2)

    def begin(self, positions: Any) -> None:
        """Find once for all layers where this step writes, and how far it sees."""
        *self._at, self._lengths = self._find(self.table, positions, self.block)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Write k, v [b, kv_heads, d] to their blocks and attend up to them."""
        mine = self.k[layer], self.v[layer]
        self._write(*mine, *self._at, k, v)
        return self._kernel(q, *mine, self.table, self._lengths)


def places(table: Any, positions: Any, block: int) -> tuple[Any, ...]:
    """Return each row's block and its place there for a position [b], and how far it then sees."""
    blocks = table.gather(1, (positions // block)[:, None])[:, 0].long()
    return blocks, positions % block, positions + 1


def write_tokens(keys: Any, values: Any, blocks: Any, inside: Any, k: Any, v: Any) -> None:
    """Write k, v [b, kv_heads, d] to places ``inside`` [b] of ``blocks`` [b] of a layer's cache."""
    keys[blocks, :, inside] = k
    values[blocks, :, inside] = v


def attend_row(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Attend from one token a row: q [b, heads, d] to k, v [b, kv_heads, s, d], as q.

    The heads that share a key head stand in for queries of one sequence: no copy of k and v.
    """
    folded = q.unflatten(1, (k.shape[1], -1))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(folded, k, v, attn_mask=mask).flatten(1, 2)


def attend_gathered(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Attend as ``attend_row`` to the first ``lengths`` tokens that the table's blocks hold."""
    columns = torch.arange(table.shape[1] * k.shape[2], device=q.device)
    mask = mask_after(lengths - 1, columns, q.dtype)
    # [b, most, kv_heads, block, d] to [b, kv_heads, most * block, d]
    k, v = (x[table.long()].transpose(1, 2).flatten(2, 3) for x in (k, v))
    return attend_row(q, k, v, mask)


def mask_after(positions: Any, columns: Any, dtype: Any) -> Any:
    """Return [b, 1, 1, columns]: 0 up to each row's position and minus infinity after it."""
    hidden = columns[None] > positions[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=columns.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None]
