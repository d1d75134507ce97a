"""How much a metric varies by itself, by class; the estimates of a run.

The H200 priors are from units of several hosts, all processes of a variant sampled alike. Between
processes: four units of one host, 13 processes each, six kernels with two sides, and seven of five
short kernels (tests/data). Between units: 274 variants on one unit of one host and one of another
(baselines/nvidia-h200), less what their processes explain, as the median and the worst difference
of two. Standard deviations of y = (1-beta) ln time + beta ln cycles, in percent:

============ ========================================== ============================ =============
class        measured between processes                 between units: sd of the     prior
                                                        median variant, sd of its
                                                        log (worst difference)
============ ========================================== ============================ =============
compute      GEMM 8192 0.03, GEMM 4096 0.15, attention  0.12, 0.65 (0.8)             0.15, 0.12/0.65
             0.07, FMA loop 0.19
memory       copy 1 GiB 0.06                            0.06, 1.05 (0.6)             0.10, 0.06/0.9
mixed,       0.2-0.35                                   0.03, 1.05 (0.6; bimodal     0.15, 0.06/0.9
unknown                                                 kernels by up to 3.7)
short        FMA 5 and 10 us 0.1, copy 4 MB 0.25, GEMM  0.02-0.17 (1.1)              0.25, 0.12
             1024 0.2, softmax 0.1. One process in eight
             stands apart by -0.35 us per launch, a
             graph's node gap: another mode, which
             ``stats.main_mode`` leaves out
one clock    GEMM 8192, 4096: time 1.3, 0.9; host jitter                              1.00, 1.00
host copy    between pageable memory and GPU: 2-10      15 (38)                      6.00, 10.0
============ ========================================== ============================ =============

The SM clock of these units differs by up to 2.3 % in one kernel, and cycles follow it by 0.13 of
that: hence compute's beta 1 with sd 0.1.

How far units differ is not one number for a class: most variants keep within a tenth of a percent,
GEMMs of 8192 differ by 0.8. The log of a variant's standard deviation scatters around its class's
by ``unit_spread``; Student's tails with as few degrees of freedom would have one in a hundred
differ by several percent, which none does.

This table is only the first prior. ``priors_of`` learns, from all entries of a SKU, the variance
of ``between`` and how ``unit`` scatters by class; ``judge.compare`` moderates them with what a
variant's own processes and units show. ``run`` is not learned: a baseline keeps only the last
processes of a unit.

The CPU prior is from five processes each of four kernels on a virtual machine with two cores:
their ranges of 5.6, 6.9, 7.1 and 15.3 % are standard deviations of 2.4-6.6 %, root mean square
4.1 %. ``run`` (the same unit on another day) and the CPU's ``unit`` are judged from experience, not
measured yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from statistics import median
from typing import Any

from msgspec import structs

from perfsuite import stats
from perfsuite.judge.peaks import COLLECTIVE, HOST_COPY, TRANSFER, class_of
from perfsuite.model import (
    CYCLES,
    TIME,
    BaselineEntry,
    BaselineMetric,
    CoreMetric,
    DeviceFacts,
    Evidence,
    Metric,
    Regime,
    Result,
    Run,
    Sampling,
    Side,
    Stage,
    Status,
    Trace,
    Variant,
    VariantRun,
    built_in,
    foreign_share,
    is_host_timed,
    metrics_by_name,
)
from perfsuite.store.codec import round_digits

# The estimates of processes: those of a result, of an entry, and of a run as entries.

# Where canaries are measured.
ENDS = (Stage.CANARY_START, Stage.CANARY_END)


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's estimate of a metric per launch, and the unit it ran on ("" if not known).

    A metric of which more is better stands here as its reciprocal: longer is always worse.
    ``is_fresh`` is false for a screen's process beside a confirmation: it was chosen for its time.
    ``night`` tells several nights apart, of which each has a level that its processes share.
    """

    unit: str
    time_us: float
    cycles: float | None = None
    is_fresh: bool = True
    night: int | None = None

    def y(self, beta: float) -> float:
        """Return the log duration in which a change of the SM clock alone cancels."""
        time = (1 - beta) * math.log(self.time_us)
        return time + beta * math.log(self.cycles) if self.cycles else time


def estimate_of(device: str, regime: str, *, in_turns: bool) -> Callable[[Any], float]:
    """Return what makes one time of a process's blocks: in pairs the least, if the host times."""
    return stats.least if in_turns and is_host_timed(device, regime) else stats.estimate


def values_of(
    result: Result, metric: Metric = TIME, time_of: Callable[[Any], float] = stats.estimate
) -> list[Timing]:
    """Return one value per process that has samples; one that is not positive is a ValueError.

    ``time_of`` makes one time of a process's blocks.
    """
    estimate, found = time_of if metric is TIME else stats.estimate, []
    for process in result.evidence:
        blocks, clock = process.samples(metric.name), process.samples(CYCLES.name)
        if any(blocks):
            cycles = stats.estimate(clock) if metric is TIME and any(clock) else None
            found.append(_timing(process.unit, metric, estimate(blocks), cycles))
    return found


def usable_of(result: Result) -> list[Timing]:
    """Return the time of each process; none where a sample is no duration."""
    try:
        return values_of(result)
    except ValueError:
        return []


def values_of_entry(entry: BaselineEntry, metric: Metric = TIME) -> list[Timing]:
    """Return the baseline's processes; the centre of a time that lists none stands for one."""
    stored = entry.metrics.get(metric.name)
    if stored is None:
        return []
    clock = entry.metrics.get(CYCLES.name) if metric is TIME else None
    if metric is TIME and not stored.values:
        return [_timing("", metric, stored.center, clock.center if clock else None)]
    return [
        _timing(unit, metric, *both)
        for unit, row in stored.values.items()
        for both in zip_longest(row, clock.values.get(unit, ()) if clock else ())
    ]


def _timing(unit: str, metric: Metric, value: float, cycles: float | None) -> Timing:
    for name, each in ((metric.name, value), (CYCLES.name, cycles)):
        if each is not None and not 0 < each < math.inf:
            raise ValueError(f"{name} must be a positive number, not {each!r}")
    return Timing(unit, 1 / value if metric.better == "higher" else value, cycles)


def by_unit(canary: VariantRun, stage: Stage) -> dict[str, Result]:
    """Return a canary's last result of a stage, apart by unit; none if it is not ok."""
    result = canary.result(stage)
    if result is None or result.status is not Status.OK:
        return {}
    return {
        unit: structs.replace(result, evidence=tuple(e for e in result.evidence if e.unit == unit))
        for unit in sorted({each.unit for each in result.evidence})
    }


def canary_clocks(run: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[float, tuple[BaselineEntry, list[Timing]]] = {}
    for one in run.canaries:
        ended = [by_unit(one, stage).values() for stage in ENDS]
        timings = [each for results in ended for result in results for each in usable_of(result)]
        work, entry = one.variant.work, one.entry
        if entry and TIME.name in entry.metrics and work and work.flops and timings:
            measured[work.flops / median(each.time_us for each in timings)] = entry, timings
    if not measured:
        return {}, {}
    chosen, timings = measured[max(measured)]
    before, now = _clocks(values_of_entry(chosen)), _clocks(timings)
    # A unit that the baseline does not know is held against those that it does.
    usual = dict.fromkeys(now, median(before.values())) if before else {}
    return {**usual, **before}, now


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for item in timings:
        if item.cycles:
            found.setdefault(item.unit, []).append(item.cycles / item.time_us)
    return {unit: median(values) for unit, values in found.items()}


def sampling_of(evidence: Iterable[Evidence]) -> Sampling | None:
    """Return how all processes were sampled, None where they differ or do not say."""
    found = {process.sampling for process in evidence}
    return found.pop() if len(found) == 1 else None


def entries_of(run: Run, given: Iterable[Result] | None = None) -> dict[str, BaselineEntry]:
    """Return the estimate of each variant whose every stage ended ok and yielded a number.

    All processes of all stages count; a stage that was measured again counts once, as it ended.
    Of the run all results that are its own count, if none are ``given``.
    """
    traces = {(trace.variant, trace.side): trace for trace in run.traces}
    variants = {one.id: one.variant for one in run.every}
    own = run.results if given is None else given
    last = {(result.variant, result.stage): result for result in own}
    measured: dict[str, list[Result]] = {}
    for result in last.values():
        measured.setdefault(result.variant, []).append(result)
    entries = {}
    for name, results in measured.items():
        variant, result = variants[name], results[-1]
        evidence = [process for each in results for process in each.evidence]
        time_of = estimate_of(run.facts.device, variant.case.regime, in_turns=result.side is Side.A)
        metrics = _metrics(evidence, run.facts.unit, variant.case.metrics, time_of)
        if not metrics or any(each.status is not Status.OK for each in results):
            continue
        trace = traces.get((name, result.side)) or Trace(variant=name)
        time = metrics.get(TIME.name)
        entries[name] = BaselineEntry(
            variant=name,
            case_version=result.case_version,
            run=run.id,
            metrics=metrics,
            regime=variant.case.regime.value,
            state={} if variant.target else dict(run.facts.state),
            artefact=next((process.artefact for process in evidence if process.artefact), ""),
            sampling=sampling_of(evidence),
            work_class=class_of(variant, run.sku.slug, time.center) if time else "",
            load=round_digits(foreign_share(evidence)),
            kernels=trace.kernels,
            codes=tuple(structs.replace(code, diff="") for code in trace.codes),
        )
    return entries


def _metrics(
    evidence: Sequence[Evidence],
    unit: str,
    declared: Sequence[Metric],
    time_of: Callable[[Any], float],
) -> dict[str, BaselineMetric]:
    """Return the metrics of a variant's processes.

    A noisy one has each process's value by unit; one that some processes lack is left out. An
    exact one has no values, and where processes differ in it the worst holds.
    """
    found = {}
    timed = [process for process in evidence if any(process.samples(TIME.name))]
    known = metrics_by_name(declared)
    for metric in known.values():
        sampled = [process.samples(metric.name) for process in timed]
        # No logarithm can be taken of nothing.
        if not timed or any(min(chain(*blocks), default=0) <= 0 for blocks in sampled):
            continue
        logs = [[list(map(math.log, block)) for block in blocks if block] for blocks in sampled]
        estimate = time_of if metric is TIME else stats.estimate
        centers = [estimate(blocks) for blocks in logs]
        away = [abs(x - median(block)) for blocks in logs for block in blocks for x in block]
        values: dict[str, tuple[float, ...]] = {}
        for process, blocks in zip(timed, sampled, strict=True):
            key = process.unit or unit
            values[key] = (*values.get(key, ()), round_digits(estimate(blocks)))
        found[metric.name] = BaselineMetric(
            center=round_digits(math.exp(stats.hodges_lehmann(centers))),
            unit=metric.unit,
            better=metric.better,
            within=round_digits(stats.MAD_TO_SD * median(away)),
            between=round_digits(math.sqrt(stats.pooled([centers]).value)),
            values=values,
        )
    exact = dict[str, BaselineMetric]()
    for process in evidence:
        for name, value in process.exact.items():
            metric = known.get(name) or Metric(name, "count")
            choose = min if metric.better == "higher" else max
            worst = choose(value, exact[name].center) if name in exact else value
            exact[name] = BaselineMetric(center=worst, unit=metric.unit, better=metric.better)
    return found | exact


# What is expected of a class of variants before anything of them is known.

# Launches below this are timed in graphs of many: node gaps and start-up are part of them.
SHORT_US = 20.0
SHORT_BETWEEN, SHORT_UNIT, SHORT_GATE = 0.0025, 0.0012, 0.015


@dataclass(frozen=True, slots=True)
class NoisePrior:
    """Relative standard deviations expected of a class of variants, and what follows from them.

    ``between`` processes, between ``run``s on one unit, between ``unit``s; ``degrees`` says to how
    many degrees of freedom ``between`` is known, ``run_degrees`` of ``run``; ``unit_spread`` is how
    far the log of a variant's ``unit`` scatters. ``threshold`` and ``gate`` are the smallest change
    that is worth a word here, and the limit of ``same``. ``beta`` is the share of time that scales
    with the SM clock, known to ``beta_sd``; both are 0 where no clock is known beside time.
    """

    between: float
    run: float
    unit: float
    threshold: float
    gate: float
    unit_spread: float = 0.5
    beta: float = 0.0
    beta_sd: float = 0.0
    degrees: float = 6.0
    run_degrees: float = 12.0

    @property
    def processes(self) -> stats.Variance:
        """The variance between processes."""
        return stats.Variance(self.between**2, self.degrees)


# Each row: between, run, unit, threshold, gate, and where they differ unit_spread, beta, beta_sd.
# What holds these up (caches, latency, the floor plan of the SMs) differs from unit to unit.
UNEXPLAINED = NoisePrior(0.0015, 0.0005, 0.0006, 0.0025, 0.01, 0.9, 0.5, 0.3, run_degrees=3.0)
PRIORS: Mapping[str, NoisePrior] = {
    "compute": NoisePrior(0.0015, 0.0005, 0.0012, 0.0025, 0.01, 0.65, 1.0, 0.1),
    "memory": NoisePrior(0.001, 0.0003, 0.0006, 0.0025, 0.01, 0.9, 0.0, 0.05),
    "mixed": UNEXPLAINED,
    "unknown": UNEXPLAINED,
    "transfer": NoisePrior(0.003, 0.003, 0.01, 0.01, 0.05),
    "host copy": NoisePrior(0.06, 0.05, 0.1, 0.05, 0.3),
    # Launches that the host issues and awaits, 31 variants: between processes 14 % (median 8),
    # between two hosts of H200s 27 % (up to 50); the host's cores decide, not the GPU.
    "host": NoisePrior(0.08, 0.04, 0.2, 0.05, 0.4, 0.3),
    # The device's own time of the same launches, 27 variants: between processes 6.4 % (median
    # 1.8), between the two hosts 5.4 % (median 0.9, up to 17 in bursts of a few microseconds).
    "awaited": NoisePrior(0.03, 0.01, 0.008, 0.05, 0.15, 0.8),
    # No clock but time; rings, and where buffers lie, differ from gang to gang: 1.7 % in 37
    # variants of two ranks (median 0.4).
    "collective": NoisePrior(0.017, 0.005, 0.02, 0.01, 0.05),
    "one clock": NoisePrior(0.01, 0.005, 0.01, 0.01, 0.05),
    # Latencies and throughput of a served trace: quantiles of a few dozen requests. Between
    # processes 3.6 % in 24 of them; the host is part of it, as of every awaited launch.
    "service": NoisePrior(0.04, 0.04, 0.2, 0.03, 0.2, 0.3),
    # Power-capped GEMMs: 0.5 to 1.6 % from process to process, 5.4 % over four H200s of one host;
    # their energy has the counter's steps besides. What a day or a unit adds to energy is judged
    # from experience, not measured yet.
    "clock": NoisePrior(0.01, 0.005, 0.025, 0.01, 0.03),
    "energy": NoisePrior(0.01, 0.01, 0.05, 0.02, 0.05),
}
CPU_PRIORS: Mapping[str, NoisePrior] = {
    "": NoisePrior(0.045, 0.03, 0.1, 0.04, 0.2),
    # Ranks share the cores, and what one waits for the others' turns is part of its time: on two
    # cores with other work an unchanged reduction of 64 numbers took 3.4 times as long.
    "collective": NoisePrior(0.25, 0.2, 0.3, 0.5, 1.0),
    "service": NoisePrior(0.1, 0.08, 0.1, 0.1, 0.5),
}


def prior_for(
    device: str, work_class: str, *, regime: Regime, time_us: float, has_cycles: bool
) -> NoisePrior:
    """Return the prior of a variant; ``time_us`` is per launch."""
    if built_in(device).is_host:
        return CPU_PRIORS.get(work_class, CPU_PRIORS[""])
    if work_class in (COLLECTIVE, TRANSFER, HOST_COPY):
        return PRIORS[work_class]
    if regime is Regime.END_TO_END or not has_cycles:
        return PRIORS["host" if regime is Regime.END_TO_END else "one clock"]
    prior = PRIORS[work_class]
    if time_us >= SHORT_US:
        return prior
    return replace(
        prior,
        between=max(prior.between, SHORT_BETWEEN),
        unit=max(prior.unit, SHORT_UNIT),
        gate=max(prior.gate, SHORT_GATE),
    )


def prior_of(metric: Metric, device: str) -> NoisePrior | None:
    """Return the prior of a metric, a scenario's where a case declares it; of clocks none."""
    noise = metric.noise if isinstance(metric, CoreMetric) else "service"
    own = CPU_PRIORS.get(noise) if noise and built_in(device).is_host else None
    return own or PRIORS.get(noise)


def time_prior(work_class: str, entry: BaselineEntry, facts: DeviceFacts) -> NoisePrior:
    """Return the prior of an entry's time by its class of work."""
    return prior_for(
        facts.device,
        work_class,
        regime=Regime(entry.regime),
        time_us=entry.metrics[TIME.name].center,
        has_cycles=CYCLES.name in entry.metrics and CYCLES.name in facts.clocks,
    )


# What the entries of a SKU teach of each class.

# Entries of several units from which a class is told: the first ones are those whose screen was
# doubtful and whose confirmation ran on another GPU, which are not like the others.
FEWEST_ENTRIES = 20


def priors_of(
    entries: Sequence[BaselineEntry], variants: Sequence[Variant], facts: DeviceFacts, slug: str
) -> dict[NoisePrior, NoisePrior]:
    """Return what the entries of a SKU make of each class's prior, by the prior."""
    known = {variant.id: variant for variant in variants}
    taught: dict[NoisePrior, list[Sequence[Timing]]] = {}
    for entry in entries:
        with suppress(ValueError):  # a time of nothing teaches nothing
            for prior, values in _samples(entry, known.get(entry.variant), facts, slug):
                taught.setdefault(prior, []).append(values)
    return {prior: _learned(prior, each) for prior, each in taught.items()}


def _samples(
    entry: BaselineEntry, variant: Variant | None, facts: DeviceFacts, slug: str
) -> Iterator[tuple[NoisePrior, Sequence[Timing]]]:
    # An entry of a regime that this version does not know is incomparable, not an error.
    if TIME.name not in entry.metrics or entry.regime not in {*Regime}:
        return
    time_us = entry.metrics[TIME.name].center
    work_class = class_of(variant, slug, time_us) if variant else entry.work_class
    if work_class:
        yield time_prior(work_class, entry, facts), values_of_entry(entry)
    own = metrics_by_name(())
    for name, stored in entry.metrics.items():
        metric = own.get(name) or Metric(name, stored.unit, stored.better)
        if stored.values and (prior := prior_of(metric, facts.device)):
            yield prior, values_of_entry(entry, metric)


def _learned(prior: NoisePrior, samples: Sequence[Sequence[Timing]]) -> NoisePrior:
    """Return a prior with the spread of processes and of units that variants' samples show."""
    of_units = []
    for timings in samples:
        by_unit: dict[str, list[float]] = {}
        for one in timings:
            by_unit.setdefault(one.unit, []).append(one.y(prior.beta))
        of_units.append(list(by_unit.values()))
    own = [stats.pooled(units) for units in of_units]
    processes = stats.learned([each for each in own if each.degrees], prior.processes)
    squares = [
        stats.between([units], stats.moderated(each, processes).value)
        for units, each in zip(of_units, own, strict=True)
    ]
    told = [square for square in squares if square.degrees]
    unit, spread = prior.unit, prior.unit_spread
    if len(told) >= FEWEST_ENTRIES:
        unit, spread = stats.scattered(told, unit, spread)
    return replace(
        prior,
        between=math.sqrt(processes.value),
        degrees=processes.degrees,
        unit=unit,
        unit_spread=spread,
    )
