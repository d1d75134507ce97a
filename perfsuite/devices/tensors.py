"""Devices whose data are torch tensors: made by seed, compared, digested and refilled; profiled."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from perfsuite.boundary import CaseError, DeviceError
from perfsuite.devices import plain
from perfsuite.devices.plain import CHUNK, POISON_BYTE, PlainDevice, pairs
from perfsuite.devices.protocol import Act, Comparison, Device, Rng, open_device
from perfsuite.model import TracedKernel

# Relative L2 error by output dtype: rounding of the format times the growth of a long sum.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
    torch.float8_e4m3fn: 6e-2,
    torch.float8_e5m2: 6e-2,
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class TensorRng:
    """Makes tensors of one device from a seed; ``outputs`` are those made by ``empty``."""

    def __init__(self, place: str, seed: int) -> None:
        self.seed = seed
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
        where = {"device": self._place, "generator": self._generator}
        return torch.randint(low, high, shape, dtype=_dtype(dtype), **where)

    def empty(self, *shape: int, dtype: str = "float32", place: str = "device") -> torch.Tensor:
        """An output, to be written by the launch."""
        where = self._place if place == "device" else "cpu"
        is_pinned = place == "pinned"
        output = torch.empty(shape, dtype=_dtype(dtype), device=where, pin_memory=is_pinned)
        self.outputs.append(output)
        return output

    def _random(self, make: Any, shape: tuple[int, ...], *, dtype: str, place: str) -> torch.Tensor:
        # Drawn on the device even for the host: a CPU takes seconds for what a GPU does at once.
        kind = _dtype(dtype)
        drawn = kind if kind in FLOATS else torch.float32
        tensor = make(shape, dtype=drawn, device=self._place, generator=self._generator).to(kind)
        if place == "pinned":  # not by way of pageable memory, which takes ten times as long
            return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
        return tensor.to(self._place if place == "device" else "cpu")


def _dtype(name: str) -> torch.dtype:
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype):
        raise CaseError(f"{name!r} is not a torch dtype", remedy="use a name such as bfloat16")
    return kind


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, tuples and lists opened."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


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
    flat, reference = got.detach().reshape(-1), want.detach().reshape(-1)
    return plain.compared(
        partial(_parts, flat, reference),
        lambda place: (flat[place].item(), reference[place].item()),
        got.shape,
        limit,
    )


# Mistakes are made in the end of a result, where a tile may be missing; a whole one costs seconds.
END, TILE = 1 << 16, 1 << 10
# Rounding to bf16 is off by 1.6 thousandths: a result that may be off by one promises no fp32.
FP32_MOST = 1e-3


def _bits(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


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


# What lies in the arguments of a launch: whether it changed, and other data in its place.

# Words that are summed at once, which takes four times their room.
SUMMED = 1 << 21
# Values that say all there is to say of them.
PLAIN = (torch.dtype, torch.device)
# An odd number without a pattern: each bit of a word counts in many of the product.
MIXER = 0x2545F4914F6CDD1D


def _inside(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value that holds others by names or places, None of other values."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.sparse_coo:
            return {0: value._indices(), 1: value._values()}  # noqa: SLF001 - coalesced or not
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return {0: value.crow_indices(), 1: value.col_indices(), 2: value.values()}
        return None
    return vars(value) if isinstance(value, torch.nn.Module) else plain.parts(value)


def _is_stored(value: Any) -> bool:
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_strided and not value.is_nested and value.untyped_storage().nbytes() > 0


def _places(outputs: Sequence[Any]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(list(outputs))}


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


# What a GPU can do.

WGMMA_ARCH = 90
# CUDA 12.4 has contexts with a part of the multiprocessors; this is its first driver.
GREEN_DRIVER = 550


def features(arch: str) -> tuple[str, ...]:
    """Return what the tensor cores can do (CUDA C++ Programming Guide, compute capabilities)."""
    number = int(arch.removeprefix("sm_").rstrip("a"))
    return tuple(
        name
        for name, least in (("bf16", 80), ("fp8", 89), ("tma", 90), ("wgmma", 90), ("fp4", 100))
        if number >= least and not (name == "wgmma" and number != WGMMA_ARCH)
    )


def sharing(driver: str, mig: str) -> tuple[str, ...]:
    """Return the ways to share this GPU that are there as it stands: none is set up here."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - MPS's own default
    major = driver.partition(".")[0]
    ways = {
        "green_context": major.isdigit() and int(major) >= GREEN_DRIVER,
        "mps": (pipes / "control").exists(),
        "mig": mig not in {"", "off"},
    }
    return tuple(name for name, is_there in ways.items() if is_there)


# What torch's profiler sees: kernels through CUPTI, and on the CPU torch's operators.

# What Kineto calls that which runs on a GPU.
GPU_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def gpu_kernels(issue: Act) -> list[TracedKernel]:
    """Return each kernel, copy and fill that ``issue`` has the GPU do, in time order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        issue()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        # Grid, block, registers and shared memory are in no other of the profiler's outputs.
        profiler.export_chrome_trace(file.name)
        text = Path(file.name).read_text(encoding="utf-8", errors="replace")
    return kernels_of(json.loads(text, strict=False)["traceEvents"])


def kernels_of(events: list[dict[str, Any]]) -> list[TracedKernel]:
    """Return the kernels among the events of Kineto's trace, whose times are microseconds."""
    ran = [event for event in events if event.get("cat") in GPU_KINDS]
    ran.sort(key=lambda event: float(event["ts"]))
    return [
        TracedKernel(
            name=str(event["name"]),
            count=1,
            duration_us=float(event.get("dur", 0.0)),
            grid=tuple(map(int, given.get("grid", ()))),
            block=tuple(map(int, given.get("block", ()))),
            registers=int(given.get("registers per thread", 0)),
            shared_bytes=int(given.get("shared memory", 0)),
        )
        for event, given in ((event, event.get("args", {})) for event in ran)
    ]


class TensorDevice(PlainDevice):
    """What devices with tensors have in common; torch's name of their memory is their own."""

    limit_threads = staticmethod(torch.set_num_threads)

    def rng(self, seed: int) -> Rng:
        """Return a maker of tensors."""
        return TensorRng(self.name, seed)

    def bytes_of(self, values: Iterable[Any]) -> int:
        """Return the bytes of the tensors in ``values``, shared storage counted once.

        Where there is no tensor, they are those of all values.
        """
        given = list(values)
        storages = [tensor.untyped_storage() for tensor in tensors_of(given)]
        if not storages:
            return super().bytes_of(given)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def poison(self, outputs: Sequence[Any]) -> None:
        """Fill outputs with NaN (floats) or 0x7f bytes (all else)."""
        super().poison([output for output in outputs if not tensors_of(output)])
        for tensor in tensors_of(list(outputs)):
            with torch.inference_mode(tensor.is_inference()):
                if tensor.is_complex() or tensor.dtype in FLOATS:
                    tensor.fill_(float("nan"))
                elif tensor.ndim and tensor.is_contiguous():
                    tensor.view(torch.uint8).fill_(POISON_BYTE)
                else:
                    tensor.fill_(POISON_BYTE)

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> Comparison:
        """Compare outputs with references by shape, relative L2 error and worst element."""
        got, want = tensors_of(actual), tensors_of(expected)
        if not got and not want:
            return super().compare(actual, expected, tolerance)
        if len(got) != len(want) or not want:
            return Comparison(math.inf, 0.0, f"{len(got)} tensors instead of {len(want)}")
        return plain.worst(_compare_one(a, b, tolerance) for a, b in zip(got, want, strict=True))

    def ends(self, result: Any) -> tuple[torch.Tensor, ...]:
        """Return copies of the last elements of each tensor."""
        return tuple(tensor.reshape(-1)[-END:].clone() for tensor in tensors_of(result))

    def mistakes(
        self, actual: Any, expected: Any, earlier: Sequence[torch.Tensor], tolerance: float | None
    ) -> Iterator[tuple[str, Comparison]]:
        """Yield mistakes that kernels make, made in each tensor of a result; how they compare."""
        for one, end, want, old in zip(
            tensors_of(actual), self.ends(actual), self.ends(expected), earlier, strict=True
        ):
            bits = _bits(end)
            row = one[0].numel() if one.ndim and len(one) else 1
            made = {
                "zeros in place of the result": torch.zeros_like(bits),
                "one row off": bits.roll(row if row < len(bits) else 1, 0),
                "the result of other inputs": _bits(old),
                "the last tile missing": bits.clone(),
            }
            made["the last tile missing"][-min(TILE, -(-len(bits) // 2)) :] = 0
            if one.dtype == torch.float32 and (tolerance is None or tolerance < FP32_MOST):
                made["rounded to bf16"] = _bits(end.bfloat16().float())
            for mistake, wrong in made.items() if len(bits) else ():
                if wrong.shape == bits.shape and not torch.equal(wrong, bits):
                    found = wrong.reshape(-1).view(end.dtype)
                    yield mistake, _compare_one(found, want, tolerance)

    def digest(self, arguments: Any, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what tells the data of arguments, but for outputs, from other data.

        Tensors on the host beside a GPU are summed there. None stands for what is unknown inside.
        """
        stored: dict[int, torch.Tensor] = {}
        others: list[Any] = []
        written = _places(outputs)
        for value, _, _ in pairs(arguments, arguments, _inside):
            if not _is_stored(value):
                others.append(repr(value) if isinstance(value, PLAIN) else value)
            elif (place := value.untyped_storage().data_ptr()) not in written:
                stored[place] = value
                others.append(repr(_layout(value)))
        where = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
        sums = [_sum(_bytes(tensor), where) for tensor in stored.values()]
        marks = super().digest(others, outputs)
        return (*marks, *(torch.stack(sums).tolist() if sums else ()))

    def refill(self, arguments: Any, fresh: Any, outputs: Sequence[Any]) -> bool:
        """Copy the data of ``fresh`` to where ``arguments`` lie, but for their ``outputs``.

        False, and nothing is done, where the two are not of one layout, where something unknown or
        what nobody may write is among them, or where host data differ that may have decided what
        a GPU was to launch.
        """
        written = _places(outputs)
        has_gpu = torch.cuda.is_initialized()
        both_sides = list(pairs(arguments, fresh, _inside))
        if not has_gpu and not any(isinstance(old, torch.Tensor) for old, _, _ in both_sides):
            return super().refill(arguments, fresh, outputs)
        found: dict[int, tuple[Any, Any]] = {}
        for old, new, _ in both_sides:
            if _is_stored(old) and _is_stored(new) and _layout(old) == _layout(new):
                storage = old.untyped_storage()
                if storage.data_ptr() in written:
                    continue
                found[storage.data_ptr()] = both = _bytes(old), _bytes(new)
                is_pinned = has_gpu and old.is_pinned()
                # What is mapped or lent is perhaps to be read alone.
                if not (is_pinned or storage.resizable()):
                    return False
                is_read_by_host = has_gpu and not (old.is_cuda or is_pinned)
                if is_read_by_host and not torch.equal(*both):
                    return False
            elif old is not new:
                tells_all = isinstance(old, PLAIN) or plain.is_frozen(old) or plain.is_flat(old)
                if not tells_all or old != new:
                    return False
        for old, new in found.values():
            old.copy_(new)
        return True

    @classmethod
    def software(cls) -> dict[str, str]:
        """Return the versions whose change a comparison may be about."""
        found = {"torch": str(torch.__version__), **super().software()}
        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found

    def traced(self, issue: Act) -> list[TracedKernel]:
        """Return each of torch's operators that ``issue`` calls, less what it calls itself."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            issue()
        return [
            TracedKernel(name=event.name, count=1, duration_us=float(event.self_cpu_time_total))
            for event in profiler.events()
        ]

    def _flush(self) -> None:
        if self._flushing is None:
            size = 2 * self.cache_bytes // 8
            self._flushing = torch.empty(size, dtype=torch.int64, device=self.name)
        self._flushing.fill_(1)
        self._flushing.sum()


# The GPU in a process that is not ours.


def open_guest() -> tuple[Device, contextlib.AbstractContextManager[object]]:
    """Open the GPU, and return it with the stream that its calls are timed in.

    Outside of that context the process's own stream stays the current one. ``DeviceError`` where
    it cannot be opened.
    """
    stream = None
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what a call reads must be there, on whichever stream
            stream = torch.cuda.current_stream()
            if torch.cuda.current_device() != 0:
                remedy = "make it torch's current one"
                raise DeviceError("only the first GPU has stamps", remedy=remedy)
        return open_device("cuda"), torch.cuda.stream(torch.cuda.current_stream())
    except ImportError as error:
        remedy = "pip install 'perfsuite[torch]'"
        raise DeviceError(f"GPU clocks need {error.name or 'cuda-core'}", remedy=remedy) from error
    finally:
        torch.cuda.set_stream(stream)
