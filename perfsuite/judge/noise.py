"""The estimates of processes: those of a result, of an entry, and of a run as entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median
from typing import Any

from msgspec import structs

from perfsuite import model, stats
from perfsuite.store.files import round_digits

# Where canaries are measured.
ENDS = (model.Stage.CANARY_START, model.Stage.CANARY_END)


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's estimate of a metric per launch, and the unit it ran on ("" if not known).

    A metric of which more is better stands here as its reciprocal: longer is always worse.
    """

    unit: str
    time_us: float
    cycles: float | None = None

    def y(self, beta: float) -> float:
        """Return the log duration in which a change of the SM clock alone cancels."""
        time = (1 - beta) * math.log(self.time_us)
        return time + beta * math.log(self.cycles) if self.cycles else time


def estimate_of(device: str, regime: str, *, in_turns: bool) -> Callable[[Any], float]:
    """Return what makes one time of a process's blocks: in pairs the least, if the host times."""
    return stats.least if in_turns and model.is_host_timed(device, regime) else stats.estimate


def values_of(
    result: model.Result,
    metric: model.Metric = model.TIME,
    time_of: Callable[[Any], float] = stats.estimate,
) -> list[Timing]:
    """Return one value per process that has samples; one that is not positive is a ValueError.

    ``time_of`` makes one time of a process's blocks.
    """
    estimate, found = time_of if metric is model.TIME else stats.estimate, []
    for process in result.evidence:
        blocks, clock = process.samples(metric.name), process.samples(model.CYCLES.name)
        if any(blocks):
            cycles = stats.estimate(clock) if metric is model.TIME and any(clock) else None
            found.append(_timing(process.unit, metric, estimate(blocks), cycles))
    return found


def usable_of(result: model.Result) -> list[Timing]:
    """Return the time of each process; none where a sample is no duration."""
    try:
        return values_of(result)
    except ValueError:
        return []


def values_of_entry(entry: model.BaselineEntry, metric: model.Metric = model.TIME) -> list[Timing]:
    """Return the baseline's processes, none of a metric that it lacks."""
    stored = entry.metrics.get(metric.name)
    if stored is None:
        return []
    clock = entry.metrics.get(model.CYCLES.name) if metric is model.TIME else None
    return [
        _timing(unit, metric, *both)
        for unit, row in stored.values.items()
        for both in zip_longest(row, clock.values.get(unit, ()) if clock else ())
    ]


def _timing(unit: str, metric: model.Metric, value: float, cycles: float | None) -> Timing:
    for name, each in ((metric.name, value), (model.CYCLES.name, cycles)):
        if each is not None and not 0 < each < math.inf:
            raise ValueError(f"{name} must be a positive number, not {each!r}")
    return Timing(unit, 1 / value if metric.better == "higher" else value, cycles)


def canary_clocks(run: model.Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[float, tuple[model.BaselineEntry, list[Timing]]] = {}
    for one in run.canaries:
        ended = [r for stage in ENDS if (r := one.result(stage)) and r.status is model.Status.OK]
        timings = [each for result in ended for each in usable_of(result)]
        work, entry = one.variant.work, one.entry
        if entry and model.TIME.name in entry.metrics and work and work.flops and timings:
            measured[work.flops / median(each.time_us for each in timings)] = entry, timings
    if not measured:
        return {}, {}
    chosen, timings = measured[max(measured)]
    before, now = _clocks(values_of_entry(chosen)), _clocks(timings)
    # A unit that the baseline does not know is held against those that it does.
    usual = dict.fromkeys(now, median(before.values())) if before else {}
    return {**usual, **before}, now


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    rates = [(one.unit, one.cycles / one.time_us) for one in timings if one.cycles]
    by_unit = stats.grouped(rates, lambda one: one[0])
    return {unit: median(rate for _, rate in some) for unit, some in by_unit.items()}


def sampling_of(evidence: Iterable[model.Evidence]) -> model.Sampling | None:
    """Return how all processes were sampled, None where they differ or do not say."""
    found = {process.sampling for process in evidence}
    return found.pop() if len(found) == 1 else None


def entries_of(
    run: model.Run, given: Iterable[model.Result] | None = None
) -> dict[str, model.BaselineEntry]:
    """Return the estimate of each variant whose every stage ended ok and yielded a number.

    All processes of all stages count; a stage that was measured again counts once, as it ended.
    Of the run all results that are its own count, if none are ``given``.
    """
    ones = {one.id: one for one in run.every}
    own = run.results if given is None else given
    last = {(result.variant, result.stage): result for result in own}
    entries = {}
    for name, results in stats.grouped(last.values(), lambda each: each.variant).items():
        variant, result = ones[name].variant, results[-1]
        evidence = [process for each in results for process in each.evidence]
        time_of = estimate_of(
            run.facts.device, variant.case.regime, in_turns=result.side is model.Side.A
        )
        metrics = _metrics(evidence, run.facts.unit, variant.case.metrics, time_of)
        if not metrics or any(each.status is not model.Status.OK for each in results):
            continue
        trace = ones[name].trace(result.side) or model.Trace(variant=name)
        entries[name] = model.BaselineEntry(
            variant=name,
            case_version=result.case_version,
            run=run.id,
            metrics=metrics,
            regime=variant.case.regime.value,
            state={} if variant.target else dict(run.facts.state),
            artefact=next((process.artefact for process in evidence if process.artefact), ""),
            sampling=sampling_of(evidence),
            work=next((process.work for process in evidence if process.work), None),
            kernels=trace.kernels,
            codes=tuple(structs.replace(code, diff="") for code in trace.codes),
        )
    return entries


def _metrics(
    evidence: Sequence[model.Evidence],
    unit: str,
    declared: Sequence[model.Metric],
    time_of: Callable[[Any], float],
) -> dict[str, model.BaselineMetric]:
    """Return the metrics of a variant's processes.

    A noisy one has each process's value by unit; one that some processes lack is left out. An
    exact one has no values, and where processes differ in it the worst holds.
    """
    found = {}
    timed = [process for process in evidence if any(process.samples(model.TIME.name))]
    known = model.metrics_by_name(declared)
    for metric in known.values():
        sampled = [process.samples(metric.name) for process in timed]
        # No logarithm can be taken of nothing.
        if not timed or any(min(chain(*blocks), default=0) <= 0 for blocks in sampled):
            continue
        logs = [[list(map(math.log, block)) for block in blocks if block] for blocks in sampled]
        estimate = time_of if metric is model.TIME else stats.estimate
        centers = [estimate(blocks) for blocks in logs]
        away = [abs(x - median(block)) for blocks in logs for block in blocks for x in block]
        values: dict[str, tuple[float, ...]] = {}
        for process, blocks in zip(timed, sampled, strict=True):
            key = process.unit or unit
            values[key] = (*values.get(key, ()), round_digits(estimate(blocks)))
        found[metric.name] = model.BaselineMetric(
            center=round_digits(math.exp(stats.hodges_lehmann(centers))),
            unit=metric.unit,
            better=metric.better,
            within=round_digits(stats.MAD_TO_SD * median(away)),
            between=round_digits(math.sqrt(stats.pooled([centers]).value)),
            values=values,
        )
    exact = dict[str, model.BaselineMetric]()
    for process in evidence:
        for name, value in process.exact.items():
            metric = known.get(name) or model.Metric(name, "count")
            choose = min if metric.better == "higher" else max
            worst = choose(value, exact[name].center) if name in exact else value
            exact[name] = model.BaselineMetric(center=worst, unit=metric.unit, better=metric.better)
    return found | exact
