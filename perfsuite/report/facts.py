"""Labelled values: what a case is, how it was measured, where, and what differs from before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfsuite.model import DeviceFacts, Evidence, Health, Regime, Run, Settings, Variant, Work
from perfsuite.profiling import profile_of
from perfsuite.report import view
from perfsuite.report.subject import Subject


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and what there is to say."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact of the environment before and now; ``before`` is empty where nothing is known."""

    name: str
    before: str
    now: str
    is_changed: bool


def present(pairs: Iterable[tuple[str, str]]) -> tuple[Fact, ...]:
    """Return the pairs that say something."""
    return tuple(Fact(label, text) for label, text in pairs if text not in {"", view.NOTHING})


def of_case(variant: Variant, device: str) -> tuple[Fact, ...]:
    """Return what a variant is, as its pack declares it."""
    case, work = variant.case, variant.work or Work()
    budgets = (
        f"{budget.metric} at most {view.budget(budget.metric, budget.most)}: {budget.reason}"
        for budget in case.budgets
    )
    operations = f"{view.operations(work.flops)} {work.rate_dtype}"
    moved = f"{view.size(work.read_bytes)} read, {view.size(work.write_bytes)} written"
    # The links are a GPU's.
    moved += "" if device == "cpu" else f" ({work.link})"
    return present(
        (
            ("Source", case.source),
            ("Declared in", f"{case.file}:{case.line}" if case.file else ""),
            ("Conditions", _conditions(variant)),
            ("Ranks", f"{variant.ranks}; the slowest one's time counts" if variant.is_gang else ""),
            ("Work per launch", operations.rstrip() if work.flops else ""),
            ("Bytes moved", moved if work.bytes else ""),
            ("Kernels in a row", f"{work.kernels:g}, by {work.start}" if work.kernels else ""),
            ("Rates", f"work / time, by {case.source}" if variant.work else ""),
            ("Budget", "; ".join(budgets)),
            ("Needs", ", ".join(f"{need.kind} {need.value}" for need in variant.needs)),
            ("Tags", ", ".join(case.tags)),
            ("Case version, tier", f"{case.version}, {variant.tier.value}"),
        )
    )


def _conditions(variant: Variant) -> str:
    case = variant.case
    if case.regime is Regime.EXACT:
        return "nothing is timed"
    temperature = "cold: inputs rotate" if case.cold else "hot: the same inputs again"
    return f"{case.regime.value.replace('_', ' ')}, {temperature}"


def of_measuring(subject: Subject) -> tuple[Fact, ...]:
    """Return how the judged processes measured, and how the device fared meanwhile."""
    evidence, wall_s = subject.evidence, subject.result.wall_s if subject.result else 0.0
    if subject.variant.case.regime is Regime.EXACT:
        return present((("Counted", "once, not timed"), ("Wall time", view.duration(wall_s))))
    blocks = [block for process in evidence for block in process.blocks]
    voided = sum(block.voided for block in blocks)
    errors = [one.error for one in evidence if one.error is not None]
    return present(
        (
            ("Check: error against the reference", view.relative_error(max(errors, default=None))),
            ("Samples", _samples(evidence)),
            ("Launches per sample", _range(one.launches for one in evidence)),
            ("Issued by", _words(one.backend for one in evidence)),
            ("Pace (spin per sample)", _pace(evidence)),
            ("Input sets", _range(one.sets for one in evidence)),
            ("Settled", "" if all(one.settled for one in evidence) else "no: limit reached first"),
            ("Samples voided", view.number(voided, 0) if voided else ""),
            *_health([block.health for block in blocks if block.health]),
            ("Units", _words(one.unit[:4] for one in evidence)),
            ("Seeds", _words(str(one.seed) for one in evidence)),
            ("Wall time", view.duration(wall_s) if wall_s else ""),
        )
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """One phase of the run with its wall time over all processes."""

    name: str
    meaning: str
    time: str
    share: str


def of_costs(run: Run) -> tuple[Cost, ...]:
    """Return where the run's own time went, and how long the device was busy with samples."""
    profile = profile_of(run)
    if not profile.phases:
        return ()
    busy_s = profile.busy * profile.devices * profile.wall_s
    busy = Cost("busy", "samples on the device", view.duration(busy_s), view.share(profile.busy))
    return (
        *(
            Cost(one.name, one.meaning, view.duration(one.seconds), view.share(one.share))
            for one in profile.phases
        ),
        busy,
    )


def of_settings(settings: Settings) -> tuple[Fact, ...]:
    """Return how the run measures."""
    rounds, samples = settings.rounds, settings.samples
    return present(
        (
            ("Processes per variant", f"{settings.processes}, fresh for each variant"),
            ("To confirm a change", f"{settings.confirm_processes} other processes"),
            ("Samples per process", f"up to {rounds * samples} in {view.count(rounds, 'block')}"),
            ("Shortest sample", view.time(settings.sample_us, None)),
            ("Settling for at most", view.duration(settings.settle_s)),
            ("Time limit to prepare", view.duration(settings.prepare_limit_s)),
            ("Time limit of a block", view.duration(settings.block_limit_s)),
            ("Seed", str(settings.seed)),
        )
    )


def everything(device: DeviceFacts) -> dict[str, str]:
    """Return all facts of a device by name."""
    return {**device.identity, **device.state, **device.environment}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return each fact of either side; only facts that both sides know count as changed."""
    return tuple(
        Difference(
            name,
            before.get(name, ""),
            now.get(name, ""),
            name in before and before[name] != now.get(name, ""),
        )
        for name in dict.fromkeys((*now, *before))
    )


def differences_of_state(subject: Subject, device: DeviceFacts) -> tuple[Difference, ...]:
    """Return what the accepted entry says of its machine that this one does not."""
    if not subject.entry or not subject.entry.state:
        return ()
    found = differences(subject.entry.state, everything(device))
    return tuple(difference for difference in found if difference.is_changed)


def _samples(evidence: tuple[Evidence, ...]) -> str:
    total = sum(len(block.time_us) for one in evidence for block in one.blocks)
    blocks = sum(len(one.blocks) for one in evidence)
    processes = view.count(len(evidence), "process", "processes")
    return (
        f"{view.number(total, 0)} in {view.count(blocks, 'block')} of {processes}" if total else ""
    )


def _pace(evidence: tuple[Evidence, ...]) -> str:
    paces = {one.pace for one in evidence if one.pace}
    return ", ".join(f"{view.number(pace, 1)}{view.TIMES}" for pace in sorted(paces))


def _range(values: Iterable[float]) -> str:
    found = sorted(set(values))
    if not found:
        return ""
    low, high = view.number(found[0], 0), view.number(found[-1], 0)
    return low if low == high else f"{low} to {high}"


def _words(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def _health(seen: list[Health]) -> list[tuple[str, str]]:
    powers = [health.power_w for health in seen if health.power_w is not None]
    warmth = [health.temperature_c for health in seen if health.temperature_c is not None]
    clocks = [health.sm_clock_mhz for health in seen if health.sm_clock_mhz is not None]
    foreign = max((health.foreign_percent or 0.0 for health in seen), default=0.0)
    unit = view.SPACE
    return [
        ("Power", f"{_range(powers)}{unit}W" if powers else ""),
        ("Temperature", f"{_range(warmth)}{unit}°C" if warmth else ""),
        ("SM clock by the driver", f"{_range(clocks)}{unit}MHz" if clocks else ""),
        ("Clock held back by", _words(reason for health in seen for reason in health.reasons)),
        ("Load by others", f"{view.number(foreign, 0)}{unit}%" if foreign else ""),
    ]
