"""The raw data of a proof: one JSON line for each thing measured, appended as it is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from msgspec import MsgspecError, Struct, json
from msgspec import Raw as Undecoded
from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.model import (
    DeviceFacts,
    Evidence,
    Result,
    Settings,
    Sku,
    Status,
    Variant,
    format_value,
)
from perfsuite.prove.planted import STRUCTURAL
from perfsuite.store.codec import encode, round_digits
from perfsuite.store.files import Closable, refusing, unpacked

SCHEMA = "perfsuite.proof/1"
CHANGE = "change"
# The change that tools are compared at: the one nearest to this.
COMPARED = 0.01


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured where; ``notes`` says what was left out and why."""

    schema: str
    started: str
    commit: str
    sku: Sku
    facts: DeviceFacts
    settings: Settings
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()


class Process(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process by the medians of its blocks, per launch: microseconds and SM cycles."""

    time_us: tuple[float, ...]
    cycles: tuple[float, ...] = ()


class Wave(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processes of a variant that one turn of the panel measured, ``reason`` if it failed.

    ``fresh`` processes were forked from a server that was exec'd for them. ``timed_s`` are seconds
    inside samples, ``busy_s`` those of settling and sampling, both by process.
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
    def variants(self) -> tuple[Variant, ...]:
        """The variants of all files."""
        found = {each.id: each for header in self.headers for each in header.variants}
        return tuple(found.values())

    @property
    def units(self) -> tuple[str, ...]:
        """The units that were measured on."""
        return tuple(dict.fromkeys(wave.unit for wave in self.waves if wave.unit))


class RawFile(Closable):
    """An append-only file of lines; a line is on disk before the next thing is measured."""

    def __init__(self, path: Path, header: Header) -> None:
        remedy = "name a file that does not exist yet, in a folder that can be written"
        with refusing("cannot create the raw data", path, remedy=remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        self._lock = threading.Lock()
        self.append(header)

    def append(self, line: Line) -> None:
        """Add a line; from any thread."""
        with self._lock:
            self._file.write(encode((type(line).__name__, line)) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
    slugs = {header.sku.slug for header in headers}
    if len(slugs) != 1:
        raise StoreError(
            f"{len(paths)} files are of {len(slugs)} SKUs: {', '.join(sorted(slugs))}",
            where=where,
            remedy="name raw files of one SKU",
        )
    return Raw(
        headers=headers,
        waves=tuple(line for line in lines if isinstance(line, Wave)),
        readings=tuple(line for line in lines if isinstance(line, Reading)),
        stretches=tuple(line for line in lines if isinstance(line, Stretch)),
    )


def _lines(path: Path) -> Iterator[Line]:
    try:
        rows = unpacked(path).split(b"\n")[:-1]
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    is_known = False
    for number, row in enumerate(rows, start=1):
        where = f"{path}:{number}"
        try:
            name, body = json.decode(row, type=tuple[str, Undecoded])
            if name not in KINDS:
                raise StoreError(f"has a line of unknown kind {name!r}", where=where)
            line = json.decode(body, type=KINDS[name])
        except (MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"has a damaged line: {error}", where=where) from error
        is_known = is_known or (isinstance(line, Header) and line.schema == SCHEMA)
        if not is_known:
            break
        yield line
    if not is_known:
        raise StoreError(
            f"is no raw data of schema {SCHEMA}",
            where=str(path),
            remedy="name a file that perfsuite prove wrote",
        )


def wave_of(result: Result, unit: str) -> Wave:
    """Return what is kept of a result: of each process the medians of its blocks."""
    wave = Wave(variant=result.variant, unit=unit, wall_s=result.wall_s)
    if result.status is not Status.OK or not result.evidence:
        return replace(wave, reason=f"{result.status.value}: {result.reason}")
    first = result.evidence[0]
    timed_s = [
        sum(sum(block.time_us) for block in each.blocks) * each.launches / 1e6
        for each in result.evidence
    ]
    busy_s = [
        sum(each.phases_s.get(phase, 0.0) for phase in ("settle", "measure"))
        for each in result.evidence
    ]
    return replace(
        wave,
        timed_s=round(fmean(timed_s), 4),
        busy_s=round(fmean(busy_s), 4),
        launches=first.launches,
        backend=first.backend,
        pace=first.pace,
        sets=first.sets,
        processes=tuple(
            Process(time_us=_medians(each, "time_us"), cycles=_medians(each, "cycles"))
            for each in result.evidence
        ),
    )


def _medians(evidence: Evidence, metric: str) -> tuple[float, ...]:
    return tuple(round_digits(median(block)) for block in evidence.samples(metric) if block)


class Subject(Struct, frozen=True, kw_only=True):
    """The variants of a case that differ in ``change`` only; ``base`` has none."""

    name: str
    base: Variant
    planted: Mapping[float, Variant]

    @property
    def is_structural(self) -> bool:
        """Say whether a change is something added, not a share of the work."""
        return STRUCTURAL in self.base.case.tags

    def compared(self) -> Variant:
        """Return the planted variant that tools are compared at."""
        return self.planted[min(self.planted, key=lambda each: abs(each - COMPARED))]


def subjects_of(variants: Iterable[Variant]) -> tuple[Subject, ...]:
    """Group variants; those without a base or without a change are left out."""
    groups: dict[str, dict[float, Variant]] = {}
    for variant in variants:
        if CHANGE in variant.axes:
            others = [format_value(v) for k, v in variant.axes.items() if k != CHANGE]
            name = " ".join((variant.case.name, *others))
            groups.setdefault(name, {})[float(variant.axes[CHANGE])] = variant
    return tuple(
        Subject(
            name=name,
            base=group[0.0],
            planted={each: group[each] for each in sorted(group) if each},
        )
        for name, group in groups.items()
        if 0.0 in group and len(group) > 1
    )
