"""The raw data of a proof: one JSON line for each thing measured, appended as it is measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from msgspec import MsgspecError, Struct, json
from msgspec import Raw as Undecoded
from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.model import (
    DeviceFacts,
    Result,
    Settings,
    Sku,
    Status,
    Variant,
    format_value,
)
from perfsuite.prove.planted import STRUCTURAL
from perfsuite.store.codec import encode, round_digits
from perfsuite.store.files import refusing, unpacked

CHANGE = "change"
# What a wave keeps of how its processes were sampled.
SAMPLED = ("launches", "backend", "pace", "sets")
# The change that tools are compared at: the one nearest to this.
COMPARED = 0.01
# What the samples are held to; no tool that verdicts are compared with.
CUPTI = "CUPTI"
NO_RAW = "name a file that perfsuite prove wrote"


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured where; the first line of a file."""

    schema: Literal["perfsuite.proof/1"] = "perfsuite.proof/1"
    started: str
    commit: str
    sku: Sku
    facts: DeviceFacts
    settings: Settings
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()

    @property
    def confirming(self) -> int:
        """Return how many waves confirm a screen."""
        return -(-self.settings.confirm_processes // self.settings.processes)


class Process(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process by the medians of its blocks, per launch: microseconds and SM cycles."""

    time_us: tuple[float, ...]
    cycles: tuple[float, ...] = ()


class Wave(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processes of a variant that one turn of the panel measured, ``reason`` if it failed.

    ``timed_s`` are seconds inside samples, ``busy_s`` those of settling and sampling, both by
    process. Some files have ``fresh`` ones, each from a server of its own, which are left out.
    """

    variant: str
    unit: str
    fresh: bool = False
    wall_s: float = 0.0
    timed_s: float = 0.0
    busy_s: float = 0.0
    launches: int = 1
    backend: str = ""
    pace: float = 0.0
    sets: int = 1
    processes: tuple[Process, ...] = ()
    reason: str = ""


class Reading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another tool said of a variant in a process of its own: microseconds per launch."""

    variant: str
    unit: str
    tool: str
    time_us: float | None = None
    seconds: float = 0.0
    reason: str = ""


class Stretch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stretch of a warm panel's work; ``busy`` is the share of polls that found the GPU busy."""

    unit: str
    wall_s: float
    timed_s: float
    spin_s: float
    busy: float | None = None


Line = Header | Wave | Reading | Stretch
KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Header, Wave, Reading, Stretch)}


class Raw(Struct, frozen=True, kw_only=True):
    """All that was measured, of one file or of several of the same SKU."""

    headers: tuple[Header, ...]
    waves: tuple[Wave, ...] = ()
    readings: tuple[Reading, ...] = ()
    stretches: tuple[Stretch, ...] = ()

    @property
    def header(self) -> Header:
        """The first file's."""
        return self.headers[0]

    @property
    def variants(self) -> dict[str, Variant]:
        """The variants of all files by their ids."""
        return {each.id: each for header in self.headers for each in header.variants}

    @property
    def units(self) -> tuple[str, ...]:
        """The units that were measured on."""
        return tuple(dict.fromkeys(wave.unit for wave in self.waves if wave.unit))


def append(file: FileIO, line: Line) -> None:
    """Add a line, which is on disk before the next thing is measured; from any thread."""
    file.write(encode((type(line).__name__, line)) + b"\n")


def read_raw(paths: Sequence[Path]) -> Raw:
    """Return what files hold; a last line without its end is what an interruption left.

    One that is named twice is refused: its processes would be compared with themselves.
    """
    lines = [line for path in paths for line in _lines(path)]
    headers = tuple(line for line in lines if isinstance(line, Header))
    where = ", ".join(map(str, paths))
    if any(header in headers[:place] for place, header in enumerate(headers)):
        raise StoreError(
            "the same data is named twice",
            where=where,
            remedy="name each raw file once, compressed or not",
        )
    slugs = sorted({header.sku.slug for header in headers})
    if len(slugs) > 1:
        what = f"{len(paths)} files are of {len(slugs)} SKUs: {', '.join(slugs)}"
        raise StoreError(what, where=where, remedy="name raw files of one SKU")
    return Raw(
        headers=headers,
        waves=tuple(line for line in lines if isinstance(line, Wave)),
        readings=tuple(line for line in lines if isinstance(line, Reading)),
        stretches=tuple(line for line in lines if isinstance(line, Stretch)),
    )


def _lines(path: Path) -> Iterator[Line]:
    with refusing("cannot be read", path, remedy=NO_RAW):
        rows = unpacked(path).split(b"\n")[:-1]
    if not rows or not rows[0].startswith(b'["Header"'):
        raise StoreError("is no raw data of a proof", where=str(path), remedy=NO_RAW)
    for number, row in enumerate(rows, start=1):
        where = f"{path}:{number}"
        try:
            name, body = json.decode(row, type=tuple[str, Undecoded])
            if name not in KINDS:
                raise StoreError(f"has a line of unknown kind {name!r}", where=where)
            yield json.decode(body, type=KINDS[name])
        except (MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"has a damaged line: {error}", where=where) from error


def wave_of(result: Result, unit: str) -> Wave:
    """Return what is kept of a result: of each process the medians of its blocks."""
    wave = Wave(variant=result.variant, unit=unit, wall_s=result.wall_s)
    if result.status is not Status.OK or not result.evidence:
        return replace(wave, reason=f"{result.status.value}: {result.reason}")
    timed_s, busy_s, processes = [], [], []
    for each in result.evidence:
        times_us, cycles = each.samples("time_us"), each.samples("cycles")
        timed_s.append(sum(map(sum, times_us)) * each.launches / 1e6)
        busy_s.append(each.phases_s.get("settle", 0.0) + each.phases_s.get("measure", 0.0))
        processes.append(Process(time_us=_medians(times_us), cycles=_medians(cycles)))
    return replace(
        wave,
        timed_s=round(fmean(timed_s), 4),
        busy_s=round(fmean(busy_s), 4),
        processes=tuple(processes),
        **{name: getattr(result.evidence[0], name) for name in SAMPLED},
    )


def _medians(blocks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(round_digits(median(block)) for block in blocks if block)


class Ladder(NamedTuple):
    """Variants of a case that differ in ``change`` only, by it; that of 0 is the base."""

    name: str
    variants: dict[float, Variant]

    @property
    def base(self) -> Variant:
        """The variant to which nothing was added."""
        return self.variants[0.0]

    @property
    def compared(self) -> Variant:
        """The variant that tools are compared at."""
        changes = [change for change in self.variants if change]
        return self.variants[min(changes, key=lambda each: abs(each - COMPARED))]

    @property
    def is_structural(self) -> bool:
        """Say whether a change is something added, not a share of the work."""
        return STRUCTURAL in self.base.case.tags


def ladders_of(variants: Iterable[Variant]) -> list[Ladder]:
    """Group variants; those without a base or without a change are left out."""
    groups: dict[str, dict[float, Variant]] = defaultdict(dict)
    for variant in variants:
        if CHANGE in variant.axes:
            others = [format_value(v) for k, v in variant.axes.items() if k != CHANGE]
            name = " ".join((variant.case.name, *others))
            groups[name][float(variant.axes[CHANGE])] = variant
    ladders = [Ladder(name, dict(sorted(group.items()))) for name, group in groups.items()]
    return [each for each in ladders if 0.0 in each.variants and len(each.variants) > 1]
