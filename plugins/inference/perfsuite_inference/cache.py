"""Three caches for keys and values: concatenated, static and paged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from perfsuite_inference.shapes import Shape

PagedKernel = Callable[..., torch.Tensor]


class ConcatCache:
    """Keys and values as one tensor a layer, copied to a longer one at every step.

    All rows have the same length. Steps need new memory each, so no CUDA graph can hold them.
    """

    def __init__(self, shape: Shape) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * shape.layers

    def fork(self) -> ConcatCache:
        """Return a cache with the same contents that grows on its own; no tensor is copied."""
        twin = ConcatCache.__new__(ConcatCache)
        twin._kept = list(self._kept)  # noqa: SLF001 - of this class
        return twin

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep a prompt's keys and values [b, kv_heads, s, d]; rows must be all rows in order."""
        if rows.numel() != k.shape[0] or self._kept[layer] is not None:
            raise ValueError(
                f"a prompt for {rows.numel()} rows of a cache that grows as one: "
                "store all rows once, or take a StaticCache"
            )
        self._kept[layer] = (k.contiguous(), v.contiguous())

    def begin(self, positions: torch.Tensor) -> None:
        """Do nothing: the tensors' length is where the new token goes."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Append k, v [b, kv_heads, d] and attend to everything."""
        k, v = k[:, :, None], v[:, :, None]
        before = self._kept[layer]
        if before is not None:
            k, v = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
        self._kept[layer] = (k, v)
        return attend_row(q, k, v)


class StaticCache:
    """Keys and values [rows, kv_heads, length, d] allocated once; each row has its own position.

    A step attends over the whole length with a mask, so its kernels and addresses are the same
    every time and a CUDA graph can hold it. A row is a slot: a new prompt may take it at any time.
    """

    def __init__(
        self, shape: Shape, rows: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        sizes = (shape.layers, rows, shape.kv_heads, length, shape.head)
        # Zeros, not whatever was there: a masked NaN would still spoil the sum.
        self.k = torch.zeros(sizes, device=device, dtype=dtype)
        self.v = torch.zeros(sizes, device=device, dtype=dtype)
        self._rows = torch.arange(rows, device=device)
        self._columns = torch.arange(length, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._mask = torch.zeros(rows, 1, 1, length, device=device, dtype=dtype)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep a prompt's keys and values [b, kv_heads, s, d] in these rows."""
        self.k[layer, rows, :, : k.shape[2]] = k
        self.v[layer, rows, :, : v.shape[2]] = v

    def begin(self, positions: torch.Tensor) -> None:
        """Make the mask of this step, once for all layers."""
        self._positions = positions
        self._mask = mask_after(positions, self._columns, self.k.dtype)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
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
        self,
        shape: Shape,
        table: torch.Tensor,
        blocks: int,
        block: int,
        dtype: torch.dtype,
        *,
        kernel: PagedKernel | None = None,
    ) -> None:
        sizes = (shape.layers, blocks, shape.kv_heads, block, shape.head)
        self.k = torch.zeros(sizes, device=table.device, dtype=dtype)
        self.v = torch.zeros(sizes, device=table.device, dtype=dtype)
        self.table = table
        self.block = block
        self._kernel = kernel or attend_gathered
        self._positions = torch.zeros(table.shape[0], dtype=torch.int64, device=table.device)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep a prompt's keys and values [b, kv_heads, s, d] in the blocks of these rows."""
        positions = torch.arange(k.shape[2], device=k.device)
        blocks = self.table[rows][:, positions // self.block].long()
        inside = (positions % self.block).expand_as(blocks)
        self.k[layer, blocks, :, inside] = k.transpose(1, 2)
        self.v[layer, blocks, :, inside] = v.transpose(1, 2)

    def begin(self, positions: torch.Tensor) -> None:
        """Note the positions of this step."""
        self._positions = positions

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write k, v [b, kv_heads, d] to their blocks and attend up to them."""
        at = self._positions
        blocks = self.table.gather(1, (at // self.block)[:, None])[:, 0].long()
        self.k[layer, blocks, :, at % self.block] = k
        self.v[layer, blocks, :, at % self.block] = v
        return self._kernel(q, self.k[layer], self.v[layer], self.table, at + 1)


def attend_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Attend from one token a row: q [b, heads, d] to k, v [b, kv_heads, s, d], as q.

    The heads that share a key head stand in for queries of one sequence: no copy of k and v.
    """
    folded = q.unflatten(1, (k.shape[1], -1))
    return functional.scaled_dot_product_attention(folded, k, v, attn_mask=mask).flatten(1, 2)


def attend_gathered(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Attend as ``attend_row`` to the first ``lengths`` tokens that the table's blocks hold."""
    columns = torch.arange(table.shape[1] * k.shape[2], device=q.device)
    mask = mask_after(lengths - 1, columns, q.dtype)
    # [b, most, kv_heads, block, d] to [b, kv_heads, most * block, d]
    k, v = (x[table.long()].transpose(1, 2).flatten(2, 3) for x in (k, v))
    return attend_row(q, k, v, mask)


def mask_after(positions: torch.Tensor, columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return [b, 1, 1, columns]: 0 up to each row's position and minus infinity after it."""
    hidden = columns[None] > positions[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=columns.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None]


class BlockPool:
    """The blocks of a paged cache that are free, handed out and taken back by number."""

    def __init__(self, blocks: int) -> None:
        # Block 0 belongs to nobody, see PagedCache.
        self._free = list(range(blocks - 1, 0, -1))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return ``count`` blocks, or none at all if that many are not free."""
        if count > len(self._free):
            return []
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        """Make blocks free again."""
        self._free.extend(reversed(blocks))
