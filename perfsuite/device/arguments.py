"""What lies in the arguments of a launch: whether it changed, and other data in its place."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from perfsuite.device.tensors import tensors_of

# Words that are summed at once, which takes four times their room.
SUMMED = 1 << 21
# Values that say all there is to say of them.
PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Objects inside objects are opened so far.
MOST_DEEP = 8
# An odd number without a pattern: each bit of a word counts in many of the product.
MIXER = 0x2545F4914F6CDD1D


def digest(arguments: Any, outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return what tells the data of arguments, but for outputs, from other data.

    Tensors on the host beside a GPU are summed there. What is unknown inside is left out.
    """
    stored: list[torch.Tensor] = []
    others: list[Any] = []
    written = _places(outputs)
    for value, _ in pairs(arguments, arguments):
        if _is_stored(value):
            stored += [] if value.untyped_storage().data_ptr() in written else [value]
        elif isinstance(value, (np.ndarray, bytearray)):
            others.append(zlib.crc32(np.asarray(value).tobytes()))
        elif isinstance(value, PLAIN):
            others.append(repr(value))
    where = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
    sums = [_sum(_bytes(tensor), where) for tensor in _once(stored)]
    return (*others, *(torch.stack(sums).tolist() if sums else ()))


def refill(arguments: Any, fresh: Any, outputs: Sequence[Any]) -> bool:
    """Copy the data of ``fresh`` to where ``arguments`` lie, but for their ``outputs``.

    False, and nothing is done, where the two are not of one layout, where something unknown or
    what nobody may write is among them, or where host data differ that may have decided what a GPU
    was to launch.
    """
    written = _places(outputs)
    found: dict[int, tuple[Any, Any]] = {}
    for old, new in pairs(arguments, fresh):
        if _is_stored(old) and _is_stored(new) and _layout(old) == _layout(new):
            place = old.untyped_storage().data_ptr()
            if place in written:
                continue
            found[place] = _bytes(old), _bytes(new)
            if not _is_ours(old) or (_is_read_by_host(old) and not torch.equal(*found[place])):
                return False
        elif not (old is new or (isinstance(old, PLAIN) and old == new)):
            return False
    for old, new in found.values():
        old.copy_(new)
    return True


def pairs(one: Any, other: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield the values in two arguments by twos; what holds others is opened."""
    ours, theirs = _inside(one), _inside(other)
    is_alike = type(one) is type(other) and depth < MOST_DEEP
    if ours is None or theirs is None or not is_alike or ours.keys() != theirs.keys():
        yield one, other
        return
    for key in ours:
        yield from pairs(ours[key], theirs[key], depth + 1)


def _inside(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value that holds others by names or places, None of other values."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if isinstance(value, torch.Tensor):
        return _components(value)
    is_module = isinstance(value, torch.nn.Module)
    return getattr(value, "__dict__", None) or None if is_module or not callable(value) else None


def _components(tensor: torch.Tensor) -> dict[Any, Any] | None:
    if tensor.layout is torch.sparse_coo:
        return {0: tensor._indices(), 1: tensor._values()}  # noqa: SLF001 - of any, coalesced or not
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return {0: tensor.crow_indices(), 1: tensor.col_indices(), 2: tensor.values()}
    return None


def _is_stored(value: Any) -> bool:
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_strided and not value.is_nested and value.untyped_storage().nbytes() > 0


def _is_ours(tensor: torch.Tensor) -> bool:
    """Say whether memory may be written: what is mapped or lent is perhaps to be read alone."""
    is_pinned = torch.cuda.is_initialized() and tensor.is_pinned()
    return is_pinned or bool(tensor.untyped_storage().resizable())


def _is_read_by_host(tensor: torch.Tensor) -> bool:
    """Say whether a tensor beside a GPU's may have decided what was launched."""
    return torch.cuda.is_initialized() and not (tensor.is_cuda or tensor.is_pinned())


def _places(outputs: Sequence[Any]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(list(outputs))}


def _once(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values())


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    size = tensor.untyped_storage().nbytes()
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset(), size


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes behind a tensor, whatever its strides."""
    place = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return place.set_(tensor.untyped_storage())


def _sum(stored: torch.Tensor, where: torch.device) -> torch.Tensor:
    """Return a sum of 8-byte words, each mixed with its place so that no two changes cancel."""
    whole = stored.numel() // 8 * 8
    total = torch.zeros((), dtype=torch.int64, device=where)
    for words in (*stored[:whole].view(torch.int64).split(SUMMED), stored[whole:]):
        mixed = words.to(where) * torch.arange(1, 2 * len(words) + 1, 2, device=where)
        mixed ^= mixed >> 29
        mixed *= MIXER
        mixed ^= mixed >> 32
        total = 31 * total + mixed.sum()
    return total
