"""Data of plain Python: numbers, text, bytes, what holds them, and buffers such as numpy arrays."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import math
import operator
import pickle
import platform
import re
import reprlib
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from perfsuite.boundary import CaseError
from perfsuite.devices.protocol import Act, Comparison, Device, Fn, Gang, Group, Rng, Sets

# What nobody can write into says all there is to say of it.
FROZEN = (bool, int, float, complex, str, bytes, range, type(None))
Put = Callable[[Any], object]
# Opens a value that holds others, by names or places; None of what holds none.
Inside = Callable[[Any], dict[Any, Any] | None]
HOLDERS = (list, tuple, dict, set, frozenset)
TEXT = (str, bytes, bytearray)
NUMBERS = (int, float, complex)
# Of these, what is equal is the same: NaN is not among them.
EXACT = (int, str, bytes, type(None))
# Objects inside objects are opened so far.
MOST_DEEP = 8

# Relative L2 error by the format of a buffer: rounding of it times the growth of a long sum.
TOLERANCES = {"d": 1e-12, "f": 1e-5, "e": 1e-2}
INTEGERS = frozenset("?bBhHiIlLqQ")
# One wrong element hides in the L2 norm of a million: no element may be off by more than this
# many tolerances, relative to its own size and the typical size of all.
ELEMENT_FACTOR = 32.0
CHUNK = 1 << 26
POISON_BYTE = 0x7F


@dataclass(slots=True)
class PlainRng:
    """Hands out the seed of a launch's inputs; torch's tensors it cannot make."""

    seed: int
    outputs: list[Any] = field(default_factory=list)

    def _refuse(self, *_shape: Any, **_kind: Any) -> Any:
        raise CaseError(
            "rng.randn, rand, randint and empty make torch tensors, and torch is not installed",
            remedy="pip install 'perfsuite[torch]', or make plain data: random.Random(rng.seed)",
        )

    randn = rand = randint = empty = _refuse


# What lies in a value.


def _kind(view: memoryview | None) -> str:
    """Return struct's letter for the numbers of a buffer, of complex ones for each of the two."""
    kind = view.format.lstrip("@").removeprefix("Z") if view is not None else ""
    return kind if kind in TOLERANCES or kind in INTEGERS else ""


def is_frozen(value: Any) -> bool:
    """Say whether a value, and what it holds, can never change."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_frozen, value))
    return isinstance(value, FROZEN)


def is_flat(value: Any) -> bool:
    """Say whether a value holds others, of which none can change."""
    if not isinstance(value, HOLDERS):
        return False
    held = value.values() if isinstance(value, dict) else value
    return _holds(held, FROZEN) or all(map(is_frozen, held))


def _holds(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    """Say whether all values are of some types: of a million, in a twentieth of a second."""
    return all(issubclass(kind, kinds) for kind in set(map(type, values)))


def view_of(value: Any) -> memoryview | None:
    """Return the memory of a buffer, None of what is none."""
    try:
        return memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None


def parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a value that holds some which may change, by names or places."""
    if is_flat(value):
        return None
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    is_open = not callable(value) and view_of(value) is None
    return (getattr(value, "__dict__", None) or None) if is_open else None


def pairs(
    one: Any, other: Any, inside: Inside = parts, put: Put | None = None, depth: int = 0
) -> Iterator[tuple[Any, Any, Put | None]]:
    """Yield the values in two arguments by twos; what holds others is opened by ``inside``.

    With them comes what puts another value into the place of the first, None where that cannot be.
    """
    ours, theirs = inside(one), inside(other)
    is_alike = type(one) is type(other) and depth < MOST_DEEP
    if ours is None or theirs is None or not is_alike or ours.keys() != theirs.keys():
        yield one, other, put
        return
    holder = one if isinstance(one, list) else ours
    for key in ours:
        own_put = None if isinstance(one, tuple) else partial(operator.setitem, holder, key)
        yield from pairs(ours[key], theirs[key], inside, own_put, depth + 1)


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield what lies in some values."""
    for value in values:
        for leaf, _, _ in pairs(value, value):
            yield leaf


def _owner(value: Any) -> Any:
    """Return what owns the memory of a buffer: several views may be of one array."""
    while True:
        is_view = isinstance(value, memoryview)
        holder = value.obj if is_view else getattr(value, "base", None)
        if holder is None or view_of(holder) is None:
            return value
        value = holder


# Whether a result is the one that the reference found.


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the worst of several, with what is allowed at most."""
    found = list(comparisons)
    # Which output is the worst is chance; what is allowed at most is not.
    limit = max(each.limit for each in found)
    return replace(max(found, key=lambda c: (bool(c.reason), c.error)), limit=limit)


def compared(
    parts: Callable[[], Iterable[tuple[int, Any, Any]]],
    values_at: Callable[[int], tuple[Any, Any]],
    shape: Sequence[int],
    limit: float,
) -> Comparison:
    """Compare numbers by their relative L2 error and the worst element.

    ``parts`` are arrays of numpy's or torch's: where one begins, how far it is off, what it should
    be. ``values_at`` returns what is at a place, and what should be.
    """
    elements = math.prod(shape)
    # Of most outputs there is one part, made once: on a GPU each step takes longer to issue than
    # to do.
    kept = list(parts()) if elements <= CHUNK else []
    delta = size = 0.0
    for _, off, should_be in kept or parts():
        delta, size = delta + (off * off).sum(), size + (should_be * should_be).sum()
    scale = math.sqrt(size) or 1.0
    error = math.sqrt(delta) / scale
    typical = scale / math.sqrt(max(1, elements)) if math.isfinite(scale) else 0.0
    # Where all together are too far off, at least one is by half of that: no count is 0.
    allowed = limit * (ELEMENT_FACTOR if error <= limit else 1 / 2)
    count, place, most = 0, 0, 0.0
    for start, off, should_be in kept or parts():
        excess = abs(off) - allowed * (abs(should_be) + typical)
        excess[~(excess < math.inf)] = math.inf  # what is no number is as far off as can be
        if (highest := float(excess.max())) > 0:
            count += int((excess > 0).sum())
            if highest > most:
                most, place = highest, start + int(excess.argmax())
    if not count and error <= limit:
        return Comparison(error, limit)
    what = f"relative error {error:.3g}, allowed {limit:.3g}"
    if not math.isfinite(error):
        error, what = math.inf, "NaN or infinity in the output"
    index = [int(each) for each in np.unravel_index(place, shape)]
    told = f"{count} of {elements} elements are wrong, worst at {index}: "
    got, expected = (f"{x:.6g}" if isinstance(x, float) else x for x in values_at(place))
    return Comparison(error, limit, f"{told}got {got}, expected {expected}; {what}")


def _compared(got: Any, want: Any, tolerance: float | None, place: str) -> Iterator[Comparison]:
    where = f" at {place}" if place else ""
    is_exact = isinstance(want, (list, tuple)) and _holds(want, EXACT)
    if is_exact and type(got) is type(want) and got == want:
        yield Comparison(0.0, 0.0)
        return
    ours, theirs = _numbers(got), _numbers(want)
    if ours and theirs:
        limit = ours[1] if tolerance is None else tolerance
        yield _numbers_compared(ours[0], theirs[0], limit, where)
        return
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        got, want = dict(enumerate(got)), dict(enumerate(want))
    if not isinstance(want, dict):
        yield _alike(got, want, where)
    elif not isinstance(got, dict):
        yield _refused(f"{type(got).__name__} instead of {type(want).__name__}{where}")
    elif got.keys() != want.keys():
        yield _refused(f"{len(got)} values instead of {len(want)}, or others{where}")
    else:
        yield Comparison(0.0, 0.0)
        for key in want:
            yield from _compared(got[key], want[key], tolerance, f"{place}[{key!r}]")


def _refused(why: str) -> Comparison:
    return Comparison(math.inf, 0.0, why)


def _alike(got: Any, want: Any, where: str) -> Comparison:
    """Compare what is no number and holds none."""
    is_text = isinstance(got, TEXT) and isinstance(want, TEXT)
    if type(got) is not type(want) and not is_text:
        return _refused(f"{type(got).__name__} instead of {type(want).__name__}{where}")
    try:
        is_same = bool(got == want)
    except Exception as error:  # noqa: BLE001 - whatever a type of the case's own raises
        return _refused(f"{type(want).__name__} cannot be compared{where}: {error}")
    if is_same:
        return Comparison(0.0, 0.0)
    if not is_text:
        return _refused(f"{reprlib.repr(got)}, not {reprlib.repr(want)}{where}")
    both = enumerate(zip(got, want, strict=False))
    first = next((i for i, (a, b) in both if a != b), min(len(got), len(want)))
    ours, theirs = (reprlib.repr(text[first:]) for text in (got, want))
    return _refused(f"from place {first} on it is {ours}, not {theirs}{where}")


def _numbers(value: Any) -> tuple[Any, float] | None:
    """Return the numbers of a value that is nothing else, in an array, and what they may be off.

    They stay Python's own, since floats take neighbours beyond 2^53 for one. Complex ones are two.
    """
    if isinstance(value, TEXT):
        return None
    given = [value] if isinstance(value, NUMBERS) else value
    if isinstance(given, (list, tuple)):
        if not given or not _holds(given, NUMBERS):
            return None
        limit = 0.0 if _holds(given, (int,)) else TOLERANCES["d"]
        found = np.array(given, dtype=object)
    else:
        view = view_of(given)
        if not (kind := _kind(view)):
            return None
        limit = TOLERANCES.get(kind, 0.0)
        found = np.atleast_1d(np.asarray(view).astype(object))
    if not _holds(found.flat, (int, float)):
        both = [(each.real, each.imag) for each in found.flat]
        found = np.array(both, dtype=object).reshape(*found.shape, 2)
    return found, limit


@np.errstate(all="ignore")  # infinity less infinity is no number, which is told
def _numbers_compared(got: Any, want: Any, limit: float, where: str) -> Comparison:
    """Compare arrays of numbers by shape, relative L2 error and worst element."""
    if got.shape != want.shape:
        return Comparison(math.inf, limit, f"shape {got.shape} not {want.shape}{where}")
    try:
        off, should_be = (got - want).astype(float), want.astype(float)
    except OverflowError:  # no float is as large as some integers
        is_same = bool((got == want).all())
        error, why = (0.0, "") if is_same else (math.inf, f"integers differ{where}")
        return Comparison(error, limit, why)
    # Squares of large numbers would be none.
    unit = np.abs(should_be).max(initial=0.0) or 1.0
    found = compared(
        lambda: [(0, off / unit, should_be / unit)] if off.size else [],
        lambda place: (got.flat[place], want.flat[place]),
        got.shape,
        limit,
    )
    return replace(found, reason=found.reason and found.reason + where)


# What lies in the arguments of a launch: whether it changed, and other data in its place.


def _fill(output: Any) -> None:
    view = view_of(output)
    if view is None or view.readonly or not _kind(view):
        raise CaseError(
            f"an output is {type(output).__name__}, which cannot be filled with what is no result",
            remedy="let the launch return it; rng.outputs takes lists, dicts and arrays of numbers",
        )
    numbers = np.asarray(view)
    (word,) = np.frombuffer(bytes([POISON_BYTE]) * numbers.itemsize, numbers.dtype)
    numbers[...] = math.nan if numbers.dtype.kind in "fc" else word


def mark(value: Any) -> int | None:
    """Return what tells the data of a value from other data, None of what is unknown."""
    if isinstance(value, set):  # in no order
        return sum(mark(each) or 0 for each in value)
    if is_frozen(value) or is_flat(value):
        data = io.BytesIO()
        pickler = pickle.Pickler(data)
        pickler.fast = True  # equal values give equal bytes, whichever of them are one object
        with contextlib.suppress(Exception):  # a type of the case's own may refuse
            pickler.dump(value)
        return zlib.crc32(data.getbuffer())
    view = view_of(value)
    if view is None:
        return None
    return zlib.crc32(view.tobytes(), zlib.crc32(f"{view.format}{view.shape}".encode()))


def _owners(outputs: Sequence[Any]) -> set[int]:
    return {id(_owner(value)) for value in leaves(outputs) if not is_frozen(value)}


def _move(old: Any, new: Any, put: Put | None) -> Act | None:
    """Return what brings the data of ``new`` to where ``old`` lies, None where that cannot be."""
    if is_frozen(old) and is_frozen(new):
        return put and partial(put, new)
    if is_flat(old) and is_flat(new) and type(old) is type(new):
        return partial(_replace, old, new)
    one, other, is_array = view_of(old), view_of(new), hasattr(old, "dtype")
    if one is None or other is None or one.readonly or (one.ndim != 1 and not is_array):
        return None
    if type(old) is not type(new) or (one.format, one.shape) != (other.format, other.shape):
        return None
    return partial(operator.setitem, old, ... if is_array else slice(None), new)


def _replace(old: Any, new: Any) -> None:
    if isinstance(old, list):
        old[:] = new
    else:
        old.clear()
        old.update(new)


# The device.

PACKAGES = (
    *("triton", "cuda-core", "cuda-bindings", "nvidia-cublas", "nvidia-cuda-nvrtc"),
    *("cuda-tile", "nvidia-cuda-nvcc", "nvidia-cutlass-dsl", "numba-cuda", "warp-lang", "jax"),
)


def compilers() -> tuple[str, ...]:
    """Return the compilers that are here, as features: none needs a GPU."""
    nvcc = ("nvcc",) if shutil.which("nvcc") else ()
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001 - a missing library is told in many ways
        return nvcc
    return ("nvrtc", *nvcc)


class PlainDevice(Device):
    """What devices have in common whose workloads may be of plain Python."""

    def __init__(self, gang: Gang | None, cache_bytes: int) -> None:
        self._gang = gang or Gang()
        self.cache_bytes = cache_bytes
        self._flushing: Any = None

    @staticmethod
    def limit_threads(count: int) -> None:
        """Let one launch use so many cores at most: Python itself uses one."""

    def rng(self, seed: int) -> Rng:
        """Return what inputs are made from."""
        return PlainRng(seed)

    def bytes_of(self, values: Iterable[Any]) -> int:
        """Return the bytes of values, what several share counted once."""
        sizes: dict[int, int] = {}
        for value in leaves(values):
            owner = _owner(value)
            if is_flat(owner):
                held = chain.from_iterable(owner.items()) if isinstance(owner, dict) else owner
                sizes[id(owner)] = sys.getsizeof(owner) + sum(map(sys.getsizeof, held))
            else:
                view = view_of(owner)
                sizes[id(owner)] = sys.getsizeof(owner) if view is None else view.nbytes
        return sum(sizes.values())

    def poison(self, outputs: Sequence[Any]) -> None:
        """Fill outputs with NaN (numbers in lists, floats in buffers) or 0x7f bytes (others)."""
        for output in outputs:
            if isinstance(output, tuple):
                self.poison(output)
            elif isinstance(output, (list, dict)):
                held = dict(output if isinstance(output, dict) else enumerate(output))
                self.poison([value for value in held.values() if not is_frozen(value)])
                for key in [key for key, value in held.items() if is_frozen(value)]:
                    output[key] = math.nan
            elif output is not None:
                _fill(output)

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> Comparison:
        """Compare an output with its reference: numbers by their error, all else to the letter."""
        if expected is None or (isinstance(expected, tuple) and not expected):
            return _refused(f"the reference is {expected!r}: nothing to compare with")
        if isinstance(actual, tuple) and len(actual) == 1 and not isinstance(expected, tuple):
            (actual,) = actual  # a launch's only output
        return worst(_compared(actual, expected, tolerance, ""))

    def digest(self, arguments: Any, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what tells the data of arguments, but for outputs, from other data.

        What is unknown inside is left out.
        """
        written = _owners(outputs)
        found = (value for value in leaves([arguments]) if id(_owner(value)) not in written)
        return tuple(map(mark, found))

    def refill(self, arguments: Any, fresh: Any, outputs: Sequence[Any]) -> bool:
        """Copy the data of ``fresh`` to where ``arguments`` lie, but for their ``outputs``.

        False, and nothing is done, where the two are not of one layout, or where something unknown
        or what nobody may write is among them.
        """
        written = _owners(outputs)
        moves: list[Act] = []
        for old, new, put in pairs(arguments, fresh):
            is_same = type(old) is type(new) and is_frozen(old) and old == new
            if old is new or is_same or id(_owner(old)) in written:
                continue
            move = _move(old, new, put)
            if move is None:
                return False
            moves.append(move)
        for move in moves:
            move()
        return True

    @classmethod
    def software(cls) -> dict[str, str]:
        """Return the versions whose change a comparison may be about."""
        found = {
            "python": platform.python_version(),
            "kernel": re.split(r"[^\d.]", platform.release())[0],  # its build is the provider's
        }
        for package in PACKAGES:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[package] = importlib.metadata.version(package)
        return found

    def group(self, fn: Fn, sets: Sets, launches: int, *, backend: str) -> Group:
        """Make a loop; ``backend`` is its name only."""

        def issue() -> None:
            for index in range(launches):
                fn(*sets[index % len(sets)])

        return Group(issue, launches, backend)

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks."""
        return self._gang.agree(value)

    def _flush(self) -> None:
        """Write, then read twice the last cache: no line of the inputs, no dirty line is left."""
        if self._flushing is None:
            size = 2 * self.cache_bytes
            self._flushing = bytearray(size), bytearray(size)  # of bytes it would make a copy first
        written, zeros = self._flushing
        written[:] = zeros
        written.find(1)
