"""The raw data of a proof, and what the product says of it.

One JSON line for each thing measured, appended as it is measured.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from msgspec import MsgspecError, Struct, json
from msgspec import Raw as Undecoded
from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import StoreError
from perfsuite.judge.noise import entries_of
from perfsuite.judge.rule import looks_of, needs_pairs
from perfsuite.judge.verdict import judge
from perfsuite.run.expected import beside
from perfsuite.stats import grouped
from perfsuite.store.codec import encode, round_digits
from perfsuite.store.files import refusing, unpacked

PACKAGE = Path(__file__).parents[1]
CHANGE = "change"
# What older files have that nothing reads any more: a kind of line, what is no share of work, and
# what the samples were held to.
RETIRED, STRUCTURAL, CUPTI = "Stretch", "structural", "CUPTI"
# What a wave keeps of how its processes were sampled.
SAMPLED = ("launches", "backend", "pace", "sets")
# The change that tools are compared at: the one nearest to this.
COMPARED = 0.01
UNCHANGED = model.Revision("", "the unchanged code")
NO_RAW = "name a file that perfsuite prove wrote"


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured where; the first line of a file. ``code`` is a digest of what ran."""

    schema: Literal["perfsuite.proof/1"] = "perfsuite.proof/1"
    started: str
    commit: str
    code: str = ""
    sku: model.Sku
    facts: model.DeviceFacts
    settings: model.Settings
    variants: tuple[model.Variant, ...]
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version of the code, as far as it is known."""
        return self.code or self.commit


class Process(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process by the medians of its blocks, per launch: microseconds and SM cycles.

    Where the host times, ``samples_us`` has all samples, and ``device_us`` the device's own time.
    """

    time_us: tuple[float, ...]
    cycles: tuple[float, ...] = ()
    device_us: tuple[float, ...] = ()
    samples_us: tuple[tuple[float, ...], ...] = ()


class Wave(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The processes of a variant that one turn of the panel measured, ``reason`` if it failed.

    Those ``beside`` are of the unchanged code, side A of pairs: alive together, in turns.
    ``busy_s`` are a process's seconds of settling and sampling. Older files have ``fresh`` ones,
    each from a server of its own, which are left out.
    """

    variant: str
    unit: str
    fresh: bool = False
    wall_s: float = 0.0
    busy_s: float = 0.0
    launches: int = 1
    backend: str = ""
    pace: float = 0.0
    sets: int = 1
    processes: tuple[Process, ...] = ()
    beside: tuple[Process, ...] = ()
    reason: str = ""

    def with_more(self, other: Wave) -> Wave:
        """Return the wave and more pairs of its variant."""
        if self.reason or other.reason:
            return self if self.reason else other
        return replace(
            self,
            wall_s=self.wall_s + other.wall_s,
            processes=self.processes + other.processes,
            beside=self.beside + other.beside,
        )


class Reading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another tool said of a variant in a process of its own: microseconds per launch."""

    variant: str
    unit: str
    tool: str
    time_us: float | None = None
    seconds: float = 0.0
    reason: str = ""


Line = Header | Wave | Reading
KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Header, Wave, Reading)}


class Night(Struct, frozen=True, kw_only=True):
    """What one file holds."""

    name: str
    header: Header
    waves: tuple[Wave, ...] = ()
    readings: tuple[Reading, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """The cards that were measured."""
        return tuple(dict.fromkeys(wave.unit for wave in self.waves))


class Raw(Struct, frozen=True):
    """All nights of one version of the code on one product, in their order."""

    nights: tuple[Night, ...]

    @property
    def header(self) -> Header:
        """The newest night's."""
        return self.nights[-1].header

    @property
    def waves(self) -> list[Wave]:
        """The waves of all nights."""
        return [wave for night in self.nights for wave in night.waves]

    @property
    def readings(self) -> list[Reading]:
        """What other tools said in all nights."""
        return [reading for night in self.nights for reading in night.readings]

    @property
    def variants(self) -> dict[str, model.Variant]:
        """The variants of all nights by their ids."""
        return {each.id: each for night in self.nights for each in night.header.variants}

    @property
    def units(self) -> tuple[str, ...]:
        """The cards of all nights."""
        return tuple(dict.fromkeys(unit for night in self.nights for unit in night.units))


def code_of() -> str:
    """Return a digest of perfsuite's own code: what is measured by another is not pooled."""
    digest = hashlib.sha256()
    for file in sorted(each for each in PACKAGE.rglob("*") if each.suffix in {".py", ".cu"}):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def append(file: FileIO, line: Line) -> None:
    """Add a line, which is on disk before the next thing is measured; from any thread."""
    file.write(encode((type(line).__name__, line)) + b"\n")


def read_raw(paths: Iterable[Path]) -> list[Raw]:
    """Return what files hold, those of one code and product together; the newest are last.

    Of a folder all its raw files. A last line without its end is what an interruption left. What
    is named twice is refused: its processes would be compared with themselves.
    """
    files = [
        file
        for path in paths
        for file in (sorted(path.glob("*.jsonl*")) if path.is_dir() else [path])
    ]
    nights = sorted(map(_night, files), key=lambda night: night.header.started)
    headers = [night.header for night in nights]
    if any(header in headers[:place] for place, header in enumerate(headers)):
        raise StoreError(
            "the same data is named twice",
            where=", ".join(map(str, files)),
            remedy="name each raw file once, compressed or not",
        )
    alike = grouped(nights, lambda night: (night.header.version, night.header.sku.slug))
    found = [Raw(tuple(group)) for group in alike.values()]
    return sorted(found, key=lambda raw: raw.header.started)


def _night(path: Path) -> Night:
    header, *lines = _lines(path)
    if not isinstance(header, Header) or any(isinstance(line, Header) for line in lines):
        raise StoreError("is no raw data of one night", where=str(path), remedy=NO_RAW)
    return Night(
        name=path.name.partition(".")[0],
        header=header,
        waves=tuple(each for each in lines if isinstance(each, Wave) and not each.fresh),
        readings=tuple(each for each in lines if isinstance(each, Reading) and each.tool != CUPTI),
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
            if name == RETIRED:
                continue
            if name not in KINDS:
                raise StoreError(f"has a line of unknown kind {name!r}", where=where)
            yield json.decode(body, type=KINDS[name])
        except (MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"has a damaged line: {error}", where=where) from error


def wave_of(result: model.Result, unit: str, *, of_a: model.Result | None = None) -> Wave:
    """Return what is kept of a result, and of side A's beside it: medians of blocks."""
    wave = Wave(variant=result.variant, unit=unit, wall_s=result.wall_s)
    for each in (of_a or result, result):
        if each.status is not model.Status.OK or not each.evidence:
            return replace(wave, reason=f"{each.status.value}: {each.reason}")
    phases = [each.phases_s for each in result.evidence]
    busy_s = [each.get("settle", 0.0) + each.get("measure", 0.0) for each in phases]
    return replace(
        wave,
        busy_s=round(fmean(busy_s), 4),
        processes=tuple(map(_process, result.evidence)),
        beside=tuple(map(_process, of_a.evidence if of_a else ())),
        **{name: getattr(result.evidence[0], name) for name in SAMPLED},
    )


def _process(evidence: model.Evidence) -> Process:
    times_us, cycles, device_us = map(
        evidence.samples, (model.TIME.name, model.CYCLES.name, model.DEVICE_TIME.name)
    )
    kept = [tuple(map(round_digits, block)) for block in times_us]
    return Process(
        time_us=_medians(times_us),
        cycles=_medians(cycles),
        device_us=_medians(device_us),
        samples_us=tuple(kept) if evidence.backend == "host" else (),
    )


def _medians(blocks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(round_digits(median(block)) for block in blocks if block)


def result_of(
    variant: model.Variant, wave: Wave, side: model.Side = model.Side.B, most: int | None = None
) -> model.Result:
    """Return a recorded wave as the result of a screen, or the first so many of its processes."""
    processes = wave.processes if side is model.Side.B else wave.beside
    evidence = [
        model.Evidence(
            slot=0,
            seed=0,
            unit=wave.unit,
            blocks=tuple(_block(process, index) for index in range(len(process.time_us))),
            **{name: getattr(wave, name) for name in SAMPLED},
        )
        for process in processes[:most]
    ]
    return model.Result(
        variant=variant.id,
        status=model.Status.OK,
        evidence=tuple(evidence),
        case_version=variant.case.version,
        side=side,
    )


def _block(process: Process, index: int) -> model.Block:
    device_us = process.device_us[index : index + 1]
    return model.Block(
        time_us=process.samples_us[index] if process.samples_us else (process.time_us[index],),
        cycles=process.cycles[index : index + 1],
        metrics={model.DEVICE_TIME.name: device_us} if device_us else {},
    )


def run_of(header: Header, *variants: model.VariantRun) -> model.Run:
    """Return variants as a run of the proof's device has them."""
    return model.Run(
        id="proof",
        started="",
        command="",
        sku=header.sku,
        facts=header.facts,
        settings=header.settings,
        variants=variants,
    )


def entry_of(header: Header, variant: model.Variant, waves: Sequence[Wave]) -> model.BaselineEntry:
    """Return waves as the product would store them as a baseline."""
    results = [result_of(variant, wave) for wave in waves]
    whole = replace(results[0], evidence=tuple(e for each in results for e in each.evidence))
    return entries_of(run_of(header, model.VariantRun(variant=variant, results=(whole,))))[
        variant.id
    ]


def verdict_of_pairs(header: Header, variant: model.Variant, wave: Wave) -> model.Verdict | None:
    """Return what pairs come to, of which the product takes more until it is plain."""
    step, found = looks_of(header.settings).step, None
    for count in range(step, len(wave.beside) + 1, step):
        sides = tuple(result_of(variant, wave, side, count) for side in model.Side)
        run = run_of(header, model.VariantRun(variant=variant, results=sides))
        found = next(iter(judge(beside(replace(run, against=UNCHANGED)))), None)
        if found is None or not needs_pairs(found):
            break
    return found


class Ladder(NamedTuple):
    """Variants of a case that differ in ``change`` only, by it; that of 0 is the base."""

    name: str
    variants: dict[float, model.Variant]

    @property
    def base(self) -> model.Variant:
        """The variant to which nothing was added."""
        return self.variants[0.0]

    @property
    def compared(self) -> model.Variant:
        """The variant that tools are compared at."""
        changes = [change for change in self.variants if change]
        return self.variants[min(changes, key=lambda each: abs(each - COMPARED))]

    @property
    def is_host_timed(self) -> bool:
        """Say whether the host takes its times."""
        return self.base.case.regime is model.Regime.END_TO_END


def ladders_of(variants: Iterable[model.Variant]) -> list[Ladder]:
    """Group variants; those without a base or without a change are left out."""
    groups: dict[str, dict[float, model.Variant]] = defaultdict(dict)
    for variant in variants:
        if CHANGE in variant.axes and STRUCTURAL not in variant.case.tags:
            others = [model.format_value(v) for k, v in variant.axes.items() if k != CHANGE]
            name = " ".join((variant.case.name, *others))
            groups[name][float(variant.axes[CHANGE])] = variant
    ladders = [Ladder(name, dict(sorted(group.items()))) for name, group in groups.items()]
    return [each for each in ladders if 0.0 in each.variants and len(each.variants) > 1]
