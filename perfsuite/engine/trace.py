"""Finds what a launch is made of: its kernels, and the code of those that were compiled here."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from subprocess import SubprocessError

from msgspec.structs import replace

from perfsuite.boundary import PerfError
from perfsuite.devices.protocol import Device, Loaded
from perfsuite.devices.sass import facts_of, read_code
from perfsuite.model import Code, TracedKernel, function_of
from perfsuite.stats import grouped
from perfsuite.store.files import round_digits

# Launches that are traced: enough for a median, but no longer than this; of long ones, one.
FEWEST, MOST = 3, 30
LONG_S, LONGEST_S = 0.1, 1.0
WARM_UP = 3
# What a launch is mostly made of; a scenario of many shapes has more, each of them short.
MOST_KERNELS = 200
# A kernel that needs fewer registers is given so many (CUPTI, H200).
LEAST_REGISTERS = 16
# C++ templates have names of tens of thousands of characters.
NAME_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The kernels of a launch, the code of our own, and its PTX by hash; ``reason`` if none."""

    kernels: tuple[TracedKernel, ...]
    codes: tuple[Code, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    reason: str = ""


def artefact_of(device: Device) -> str:
    """Return a hash over the PTX of all kernels compiled here, nothing where there are none."""
    hashes = {own.hash for own in device.loaded() if own.ptx and not own.is_generated}
    text = " ".join(sorted(hashes))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest() if hashes else ""


def dissect(device: Device, build: Callable[[], Sequence[Callable[[], object]]]) -> Anatomy:
    """Return what a launch is made of; ``build`` returns calls of it, one for each input set."""
    # A graph that is made before CUPTI is there hides its kernels from it.
    device.traced(lambda: None)
    launches = build()
    once_s = warmed_up(device, launches)
    count = 1 if once_s > LONGEST_S else max(FEWEST, min(MOST, int(LONG_S / max(once_s, 1e-9))))

    def issue() -> None:
        for index in range(count):
            launches[index % len(launches)]()

    kernels = sorted(_grouped(device.traced(issue), count), key=lambda each: -each.total_us)
    reason = "" if kernels else "the profiler saw no kernel"
    if left := kernels[MOST_KERNELS:]:
        left_us = sum(each.total_us for each in left)
        reason = f"{len(left)} more kernels, {left_us:.3g} us together, are left out"
    kept = tuple(kernels[:MOST_KERNELS])
    own = {loaded.hash: loaded for loaded in device.loaded() if loaded.ptx}
    codes = tuple(_codes(kept, own.values()))
    return Anatomy(kept, codes, {code.ptx: own[code.ptx].ptx for code in codes}, reason)


def warmed_up(device: Device, launches: Sequence[Callable[[], object]]) -> float:
    """Return the seconds that a launch took after a few."""
    for index in range(WARM_UP):
        started = time.monotonic()
        launches[index % len(launches)]()
        device.synchronize()
        once_s = time.monotonic() - started
        if once_s > LONGEST_S:
            break
    return once_s


def _grouped(seen: Sequence[TracedKernel], launches: int) -> Iterator[TracedKernel]:
    """Yield kernels of one name and shape as one, with their count in a launch."""
    alike = attrgetter("name", "grid", "block", "registers", "shared_bytes")
    for kernels in grouped(seen, alike).values():
        name, half = kernels[0].name, NAME_CHARACTERS // 2
        yield replace(
            kernels[0],
            name=name if len(name) <= NAME_CHARACTERS else f"{name[:half]}...{name[-half:]}",
            count=round_digits(len(kernels) / launches),
            duration_us=round_digits(statistics.median(each.duration_us for each in kernels)),
        )


def _codes(kernels: Sequence[TracedKernel], own: Iterable[Loaded]) -> Iterator[Code]:
    """Yield the code of those that ran: of what an autotuner compiled, most does not."""
    for loaded in own:
        ran = [
            each for each in kernels if each.function in (function_of(loaded.name), loaded.symbol)
        ]
        facts: dict[str, float] = {}
        with suppress(PerfError, OSError, SubprocessError):  # no cuobjdump, or too old a one
            if image := loaded.image():
                facts = facts_of(read_code(image, loaded.symbol))
        takes = {each.registers for each in ran}
        needs = max(LEAST_REGISTERS, facts.get("registers", 0))
        if ran and (needs in takes or takes == {0} or not facts):
            yield Code(name=loaded.name, ptx=loaded.hash, facts=facts)
