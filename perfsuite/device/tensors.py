"""Random inputs, poison and comparison for the devices whose data are torch tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from perfsuite.device.protocol import Comparison
from perfsuite.errors import CaseError

# Relative L2 error by output dtype: rounding of the format times the growth of a long sum.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
    torch.float8_e4m3fn: 6e-2,
    torch.float8_e5m2: 6e-2,
}
# One wrong element hides in the L2 norm of a million: no element may be off by more than this
# many tolerances, relative to its own size and the typical size of all.
ELEMENT_FACTOR = 32.0
CHUNK = 1 << 26
POISON_BYTE = 0x7F
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class TensorRng:
    """Makes tensors of one device from a seed; ``outputs`` are those made by ``empty``."""

    def __init__(self, place: str, seed: int) -> None:
        self.outputs: list[Any] = []
        self._place = place
        self._generator = torch.Generator(device=place).manual_seed(seed)

    def randn(self, *shape: int, dtype: str = "float32", place: str = "device") -> torch.Tensor:
        """Standard normal values; float8 is rounded from float32."""
        return self._random(torch.randn, shape, dtype=dtype, place=place)

    def rand(self, *shape: int, dtype: str = "float32", place: str = "device") -> torch.Tensor:
        """Uniform values in [0, 1)."""
        return self._random(torch.rand, shape, dtype=dtype, place=place)

    def randint(self, low: int, high: int, *shape: int, dtype: str = "int32") -> torch.Tensor:
        """Uniform integers in [low, high)."""
        return torch.randint(
            low, high, shape, dtype=_dtype(dtype), device=self._place, generator=self._generator
        )

    def empty(self, *shape: int, dtype: str = "float32", place: str = "device") -> torch.Tensor:
        """An output, to be written by the launch."""
        output = torch.empty(
            shape,
            dtype=_dtype(dtype),
            device=self._place if place == "device" else "cpu",
            pin_memory=place == "pinned",
        )
        self.outputs.append(output)
        return output

    def _random(self, make: Any, shape: tuple[int, ...], *, dtype: str, place: str) -> torch.Tensor:
        # Drawn on the device even for the host: a CPU takes seconds for what a GPU does at once.
        where = self._place
        kind = _dtype(dtype)
        drawn = kind if kind in FLOATS else torch.float32
        tensor = make(shape, dtype=drawn, device=where, generator=self._generator)
        tensor = tensor.to(kind)
        if place == "pinned":  # not by way of pageable memory, which takes ten times as long
            return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
        return tensor.to(where if place == "device" else "cpu")


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, tuples and lists opened."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


def bytes_of(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors in ``values``, shared storage counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors_of(list(values))]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Flush:
    """Writes, then reads twice the last cache: no line of the inputs and no dirty line is left."""

    def __init__(self, place: str, cache_bytes: int) -> None:
        self._place = place
        self._count = 2 * cache_bytes // 8
        self._values: torch.Tensor | None = None

    def __call__(self) -> None:
        """Do so."""
        if self._values is None:
            self._values = torch.empty(self._count, dtype=torch.int64, device=self._place)
        self._values.fill_(1)
        self._values.sum()


def poison(outputs: Sequence[Any]) -> None:
    """Fill outputs with NaN (floats) or 0x7f bytes (all else)."""
    for tensor in tensors_of(list(outputs)):
        with torch.inference_mode(tensor.is_inference()):
            if tensor.is_complex() or tensor.dtype in FLOATS:
                tensor.fill_(float("nan"))
            elif tensor.ndim and tensor.is_contiguous():
                tensor.view(torch.uint8).fill_(POISON_BYTE)
            else:
                tensor.fill_(POISON_BYTE)


def compare(actual: Any, expected: Any, tolerance: float | None) -> Comparison:
    """Compare outputs with references by shape, relative L2 error and worst element."""
    got, want = tensors_of(actual), tensors_of(expected)
    if len(got) != len(want) or not want:
        return Comparison(math.inf, 0.0, f"{len(got)} tensors instead of {len(want)}")
    comparisons = [_compare_one(a, b, tolerance) for a, b in zip(got, want, strict=True)]
    worst = max(comparisons, key=lambda c: (bool(c.reason), c.error))
    # Which output is the worst is chance; what is allowed at most is not.
    return replace(worst, limit=max(each.limit for each in comparisons))


def _compare_one(got: torch.Tensor, want: torch.Tensor, tolerance: float | None) -> Comparison:
    limit = TOLERANCES.get(got.dtype, 0.0) if tolerance is None else tolerance
    if got.shape != want.shape:
        return Comparison(math.inf, limit, f"shape {tuple(got.shape)} not {tuple(want.shape)}")
    if got.device.type == "cpu":
        if torch.cuda.is_initialized():  # a copy to it may be under way
            torch.cuda.current_stream().synchronize()
        # What was brought back to the host is compared where the reference was made: 2^24 numbers
        # in float64 take a core 2.5 s.
        got = got.to(want.device)
    if got.is_complex() or want.is_complex():
        got, want = torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj())
    if got.dtype == want.dtype and torch.equal(got, want.to(got.device)):
        return Comparison(0.0, limit)
    return _compare_flat(got.reshape(-1), want.reshape(-1), limit)


def _compare_flat(flat: torch.Tensor, reference: torch.Tensor, limit: float) -> Comparison:
    # Of most outputs there is one part, made once: on a GPU each step takes longer to issue than
    # to do.
    is_small = flat.numel() <= CHUNK
    kept = list(_parts(flat, reference)) if is_small else []
    sums = torch.zeros(2, dtype=torch.float64, device=flat.device)
    for _, off, should_be in kept or _parts(flat, reference):
        sums += torch.stack((off.square().sum(), should_be.square().sum()))
    delta, size = sums.tolist()
    scale = math.sqrt(size) or 1.0
    error = math.sqrt(delta) / scale
    if not math.isfinite(error):
        return Comparison(math.inf, limit, "NaN or infinity in the output")
    if error > limit:
        return Comparison(error, limit, f"relative error {error:.3g} above {limit:.3g}")
    typical = scale / math.sqrt(max(1, flat.numel()))
    for start, off, should_be in kept or _parts(flat, reference):
        excess = off.abs() - ELEMENT_FACTOR * limit * (should_be.abs() + typical)
        if float(excess.max()) > 0:
            worst = int(excess.argmax())
            what, wanted = float(flat[start + worst]), float(reference[start + worst])
            why = f"element {start + worst} is {what:.6g}, not {wanted:.6g}"
            return Comparison(error, limit, why)
    return Comparison(error, limit)


def _parts(
    flat: torch.Tensor, reference: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield where each part begins, how far it is off, and what it should be."""
    for start in range(0, flat.numel(), CHUNK):
        got, want = flat[start : start + CHUNK], reference[start : start + CHUNK].to(flat.device)
        should_be = want.double()
        if got.is_floating_point() or want.is_floating_point():
            yield start, got.double() - should_be, should_be
        else:  # beyond 2^53 float64 takes neighbours for one
            yield start, (got.long() - want.long()).double(), should_be


def _dtype(name: str) -> torch.dtype:
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise CaseError(f"{name!r} is not a torch dtype", remedy="use a name such as bfloat16")
    return kind
