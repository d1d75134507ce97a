"""What authors' tests use: ``check_pack``, ``check_device``, and pytest-benchmark's timer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perfsuite.boundary import DeviceError, PackError, StoreError, UsageError, in_a_line
from perfsuite.devices.peaks import per_launch
from perfsuite.devices.protocol import Device, Sample, facts_faults, open_device, sampled
from perfsuite.engine.measure import Session
from perfsuite.hooks import added
from perfsuite.model import Health, Pack, Regime, Settings, Tier, Variant
from perfsuite.packs.find import Fault, discover, packs_at
from perfsuite.packs.load import Listeners, LoadedPack, chosen_accelerator, load_pack
from perfsuite.packs.select import claims_of, missing_need
from perfsuite.store import baselines
from perfsuite.workers.process import load_catalogue

if TYPE_CHECKING:
    from perfsuite.interop import DeviceClock

__all__ = ["DeviceClock", "check_device", "check_pack", "launch_pack"]


class Launched(NamedTuple):
    """A variant that was launched on a device, or why it could not be."""

    pack: Pack
    variant: str
    why: str
    device: Device


# Slow to import, and of no use for listing cases.
HEAVY = ("torch", "triton", "numpy")
# What a device is asked for.
SIZE, SEED, LAUNCHES = 64, 7, 3


def __getattr__(name: str) -> object:
    """Return what a feature has for tests: ``DeviceClock``."""
    found = added("perf_testing")
    if name not in found:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found[name]


def check_pack(pack: ModuleType | str | Path, *, device: str = "cpu") -> tuple[str, ...]:
    """Raise ``PackError`` unless the pack holds; return the ids of the variants that were run.

    ``pack`` is the pack's module, the name of an installed pack, or a file or folder. All tiers
    are listed, in a fresh process: ids must be unique, work must not be zero, each case needs a
    docstring and a source, each claim two variants, each ceiling one whose work is of it, baselines
    inside the pack must be readable and of variants that it has, and nothing of ``HEAVY`` may be
    imported.
    Then each smoke variant that the device can run is built in this process, compared with its
    reference, and its negative control must be refused. ``device`` may be the pack's own, which is
    then checked as well; ``""`` leaves all that out.
    """
    run: list[str] = []
    for source in _sources(pack):
        listed, loaded = _loaded(source, Tier.FULL, HEAVY)
        source.check("", _faults(listed, loaded))
        if device:
            own = chosen_accelerator(device, [listed])
            opened = open_device(device, accelerator=own)
            if own:
                check_device(opened)
            run += _check_results(listed, loaded, opened)
    return tuple(run)


def launch_pack(
    pack: ModuleType | str | Path, *, device: str = "cuda", tier: Tier = Tier.NIGHTLY
) -> Iterator[Launched]:
    """Launch each variant that the device can run once, in this process; nothing is compared.

    One that cannot be launched says why, and the others are launched all the same.
    """
    for source in _sources(pack):
        listed, loaded = _loaded(source, tier, ("torch",))
        opened = open_device(device, accelerator=chosen_accelerator(device, [listed]))
        for variant, session in _sessions(listed, loaded, opened):
            why = ""
            try:
                session.launches(1)[0]()
                opened.synchronize()
            except Exception as error:  # noqa: BLE001 - whatever it raises is the reason
                why = in_a_line(error)
            yield Launched(loaded.pack, variant.id, why, opened)


def check_device(device: Device) -> None:
    """Raise ``DeviceError`` with all that a device of a pack lacks or does otherwise than promised.

    It is asked for its facts, for data, for a comparison, and to time three launches each way that
    perfsuite groups them; nothing is asked about how fast or how noisy it is.
    """
    faults: list[str] = []
    for about, part in {"facts": facts_faults, "data": _data, "clock": _clock}.items():
        try:
            faults += part(device)
        except Exception as error:  # noqa: BLE001 - whatever it raises is the fault
            faults.append(f"{about}: it raised {type(error).__name__}: {error}")
    if faults:
        raise DeviceError(
            "\n  ".join(faults),
            where=f"device {type(device).__module__}.{type(device).__qualname__}",
            remedy="perfsuite.Device says what each method promises",
        )


def _data(device: Device) -> Iterator[str]:
    context: Any = device.context(SEED)
    for name in ("device", "place", "arch", "seed", "rank", "ranks"):
        if not hasattr(context, name):
            yield f"context() has no attribute {name!r}"
    first, again, other = (device.rng(seed).randn(SIZE) for seed in (SEED, SEED, SEED + 1))
    if not device.compare(first, again, 0.0).is_right:
        yield "rng: one seed makes two different inputs"
    if device.compare(first, other, None).is_right:
        yield "compare: it takes different values for equal"
    if device.bytes_of([first]) <= 0:
        yield "bytes_of: inputs have no bytes"
    rng = device.rng(SEED)
    output = rng.empty(SIZE)
    if not any(output is each for each in rng.outputs):
        yield "rng: what empty() hands out is not among its outputs"
    device.poison([output])
    if device.compare(output, output, None).is_right or device.compare(output, first, 1.0).is_right:
        yield "poison: what was overwritten is accepted as a result"


def _clock(device: Device) -> Iterator[str]:
    values = device.rng(SEED).randn(SIZE)
    conditions = {"regime": Regime.PACED, "spin_us": 0.0, "flush": True}
    for backend in ("graph", "loop", "host"):
        calls: list[Any] = []
        group = device.group(calls.append, [(values,), (values,)], LAUNCHES, backend=backend)
        if group.launches != LAUNCHES:
            yield f"group: it was asked for {LAUNCHES} launches and says {group.launches}"
        # Of a block, too: a device may hold a few only.
        few, many = (sampled(device, group, n, **conditions) for n in (2, Settings().samples))
        for each in few + many:
            if not isinstance(each, Sample) or each.time_us < 0:
                yield f"sample: {each!r} is no Sample of a time in microseconds"
            elif math.isfinite(each.cycles) != device.has_cycles and math.isfinite(each.time_us):
                yield f"sample: cycles are {each.cycles} and has_cycles is {device.has_cycles}"
        if len(calls) < LAUNCHES and group.backend != "graph":
            yield f"sample: {len(calls)} launches were issued of groups of {LAUNCHES}"
    if not isinstance(cast("Any", device.health()), Health):
        yield "health() returned no Health"
    device.synchronize()


def _sources(pack: ModuleType | str | Path) -> list[Pack]:
    if isinstance(pack, ModuleType):
        return _of_module(pack)
    return packs_at(Path(pack)) if Path(pack).exists() else [*discover(None, allow=[str(pack)])]


def _loaded(source: Pack, tier: Tier, heavy: Sequence[str]) -> tuple[Pack, LoadedPack]:
    """Return a pack as it is listed, and as it is loaded here; ``PackError`` if it cannot be."""
    (listed,) = load_catalogue([source], tier=tier, heavy=heavy)
    if listed.error:
        raise PackError(listed.error)
    return listed, load_pack(source.name, source.origin)


def _of_module(module: ModuleType) -> list[Pack]:
    """Return the module's pack as the nearest pyproject.toml or what is installed declares it.

    Else it is the file itself.
    """
    if not getattr(module, "__file__", None):
        raise UsageError(f"module {module.__name__!r} has no file", remedy="name the pack's folder")
    file = Path(str(module.__file__))
    folders = [folder for folder in file.parents if (folder / "pyproject.toml").is_file()]
    declared = [source for folder in folders[:1] for source in packs_at(folder)]
    for known in (declared, discover(None)):
        own = f"module:{module.__name__}@"
        if found := [source for source in known if source.origin.startswith(own)]:
            return found
    return packs_at(file)


def _faults(listed: Pack, loaded: LoadedPack) -> Iterator[Fault]:
    for note in Listeners([listed]).notes:
        yield note, "let the module of perf_controller import light things, and mark its hooks"
    yield from _shipped_faults(listed)
    for variant in listed.variants:
        work = variant.work
        if work is not None and not work.bytes + work.flops + work.kernels:
            remedy = "correct the case's work, or leave it out if a launch has none"
            yield f"the work of {variant.id} is zero", remedy
    for case, ceiling in ((one, each) for one in loaded.cases.values() for each in one.ceilings):
        shown = [each for each in listed.ceilings[ceiling] if each.case.name == case.name]
        if not shown or not all(each.work and per_launch(each.work, ceiling)[0] for each in shown):
            what = f"case {case.name!r} has no variant for ceiling {ceiling!r}, or one without it"
            yield what, "check its ceilings, only and work"
    named = {claim.than.partition(".")[0] for claim in listed.claims} - {listed.name}
    others = load_catalogue([s for s in discover(Path()) if s.name in named], tier=Tier.FULL)
    known = [variant for pack in (listed, *others) for variant in pack.variants]
    bound = {claim.id.partition("[")[0] for claim in claims_of([listed], known)}
    for claim in loaded.claims:
        if f"{listed.name}.{claim.case}:{claim.name}" not in bound:
            what = f"claim {claim.name!r} binds no two variants in any tier"
            yield what, "check its faster, than and at, and the case's only"


def _shipped_faults(listed: Pack) -> Iterator[Fault]:
    """Yield what is wrong with the baselines inside the pack, or stale in them."""
    roots = baselines.shipped_by([listed])
    for folder in (path for root in roots for path in sorted(root.folder.iterdir())):
        try:
            baselines.read_sku(folder)
            found: dict[str, baselines.StoredEntry] = {}
            for own in baselines.packs_in(folder):
                found |= baselines.read_pack(folder, own)
            baselines.read_runs(folder, baselines.runs_of(found.values()))
        except StoreError as error:
            yield f"a baseline that it ships is not usable: {error.what}", f"look at {error.where}"
            continue
        for name in sorted(found.keys() - {variant.id for variant in listed.variants}):
            remedy = "accept a new run for the baseline that is shipped, or take the entry out"
            yield f"{folder.name} has a baseline of {name}, which the pack does not list", remedy


def _check_results(listed: Pack, loaded: LoadedPack, device: Device) -> Iterator[str]:
    for variant, session in _sessions(listed, loaded, device):
        if variant.tier is Tier.SMOKE:
            where = f"{variant.case.file}:{variant.case.line}"
            try:
                session.prepare()
            except Exception as error:
                what = f"{variant.id}: {in_a_line(error)}"
                remedy = getattr(error, "remedy", "the traceback above shows the line")
                raise PackError(what, where=where, remedy=remedy) from error
            yield variant.id


def _sessions(
    listed: Pack, loaded: LoadedPack, device: Device
) -> Iterator[tuple[Variant, Session]]:
    """Yield what the device can run; the ranks of a gang are the panel's to start."""
    facts = device.facts()
    for variant in listed.variants:
        if not variant.is_gang and not missing_need(variant, facts):
            case = loaded.cases[variant.case.name]
            yield variant, Session(device, case, variant.axes, Settings(check_only=True), seed=0)
