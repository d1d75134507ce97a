"""How much a metric varies by itself, by class; the estimates of a run.

The H200 priors are from units of several hosts, all processes of a variant sampled alike. Between
processes: four units of one host, 13 processes each, six kernels with two arms, and seven of five
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

This table is only the first prior. ``judge.compare`` learns, from all entries of a SKU, the
variance of ``between`` and how ``unit`` scatters by class, and moderates them with what a variant's
own processes and units show. ``run`` is not learned: a baseline keeps only the last processes of a
unit.

The CPU prior is from five processes each of four kernels on a virtual machine with two cores:
their ranges of 5.6, 6.9, 7.1 and 15.3 % are standard deviations of 2.4-6.6 %, root mean square
4.1 %. ``run`` (the same unit on another day) and the CPU's ``unit`` are judged from experience, not
measured yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from perfsuite.judge.peaks import (
    COLLECTIVE,
    COMPUTE,
    HOST_COPY,
    MEMORY,
    MIXED,
    TRANSFER,
    UNKNOWN,
    class_of,
)
from perfsuite.model import (
    METRICS,
    TIME,
    BaselineEntry,
    BaselineMetric,
    Evidence,
    Metric,
    Regime,
    Result,
    Run,
    Status,
    Trace,
    built_in,
    foreign_share,
)
from perfsuite.stats import components, estimate
from perfsuite.store.codec import round_digits

# Launches below this are timed in graphs of many: node gaps and start-up are part of them.
SHORT_US = 20.0
# How far theta may be off because more than one clock moved, per unit of the SM clock's change:
# attention's cycles rise by 1.7 % when a power cap takes 8 % off the SM clock.
LACK_OF_FIT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePrior:
    """Relative standard deviations expected of a class of variants, and what follows from them.

    ``within`` a process, ``between`` processes, between ``run``s on one unit, between ``unit``s;
    ``degrees`` says to how many degrees of freedom ``between`` is known, ``run_degrees`` of
    ``run``; ``unit_spread`` is how far the log of a variant's ``unit`` scatters. ``beta`` is the
    share of time that scales with the SM clock.
    ``threshold`` and ``gate`` are the smallest change that is worth a word here, and the limit of
    ``same``.
    """

    within: float = 0.003
    between: float = 0.0015
    run: float = 0.0005
    unit: float = 0.0015
    degrees: float = 6.0
    run_degrees: float = 12.0
    unit_spread: float = 0.5
    beta: float = 0.5
    beta_sd: float = 0.3
    threshold: float = 0.0025
    gate: float = 0.01


# Where no clock is known beside time.
TIME_ALONE = NoisePrior(beta=0.0, beta_sd=0.0)
BY_CLASS = {
    COMPUTE: NoisePrior(beta=1.0, beta_sd=0.1, unit=0.0012, unit_spread=0.65),
    MEMORY: NoisePrior(
        beta=0.0, beta_sd=0.05, between=0.001, run=0.0003, unit=0.0006, unit_spread=0.9
    ),
    # What holds these up (caches, latency, the floor plan of the SMs) differs from unit to unit.
    MIXED: NoisePrior(run_degrees=3.0, unit=0.0006, unit_spread=0.9),
    UNKNOWN: NoisePrior(run_degrees=3.0, unit=0.0006, unit_spread=0.9),
    TRANSFER: replace(TIME_ALONE, between=0.003, run=0.003, unit=0.01, threshold=0.01, gate=0.05),
    HOST_COPY: replace(TIME_ALONE, between=0.06, run=0.05, unit=0.1, threshold=0.05, gate=0.3),
}
# Launches that the host issues and awaits, 31 variants: between processes 14 % (median 8), between
# two hosts of H200s 27 % (up to 50); the host's cores decide, not the GPU.
HOST = replace(
    TIME_ALONE, within=0.02, between=0.08, run=0.04, unit=0.2, unit_spread=0.3, threshold=0.05,
    gate=0.4,
)  # fmt: skip
# The device's own time of the same launches, 27 variants: between processes 6.4 % (median 1.8),
# between the two hosts 5.4 % (median 0.9, up to 17 in bursts of a few microseconds).
AWAITED = replace(HOST, between=0.03, run=0.01, unit=0.008, unit_spread=0.8, gate=0.15)
# Collectives: no clock but time; rings, and where buffers lie, differ from gang to gang:
# 1.7 % in 37 variants of two ranks (median 0.4).
GANG = replace(
    TIME_ALONE, within=0.01, between=0.017, run=0.005, unit=0.02, threshold=0.01, gate=0.05
)
# Latencies and throughput of a served trace: quantiles of a few dozen requests.
# Between processes 3.6 % in 24 of them; the host is part of it, as of every awaited launch.
SERVICE = replace(HOST, within=0.03, between=0.04, threshold=0.03, gate=0.2)
SHORT_BETWEEN, SHORT_UNIT, SHORT_GATE = 0.0025, 0.0012, 0.015
ONE_CLOCK = replace(GANG, between=0.01, unit=0.01)
CPU = replace(TIME_ALONE, within=0.03, between=0.045, run=0.03, unit=0.1, threshold=0.04, gate=0.2)
# Ranks share the cores, and what one waits for the others' turns is part of its time: on two
# cores with other work an unchanged reduction of 64 numbers took 3.4 times as long.
CPU_GANG = replace(CPU, within=0.25, between=0.25, run=0.2, unit=0.3, threshold=0.5, gate=1.0)
SERVICE_CPU = replace(CPU, within=0.1, between=0.1, run=0.08, threshold=0.1, gate=0.5)
# Power-capped GEMMs: 0.5 to 1.6 % from process to process, 5.4 % over four H200s of one host;
# their energy has the counter's steps besides. What a day or a unit adds to energy is judged from
# experience, not measured yet.
CLOCK_PRIOR = replace(TIME_ALONE, between=0.01, run=0.005, unit=0.025, threshold=0.01, gate=0.03)
ENERGY_PRIOR = replace(CLOCK_PRIOR, run=0.01, unit=0.05, threshold=0.02, gate=0.05)


# By the noise that a row of METRICS names.
BY_NOISE = {"awaited": AWAITED, "energy": ENERGY_PRIOR}


def service_prior(device: str) -> NoisePrior:
    """Return the prior of a scenario's own metrics."""
    return SERVICE_CPU if built_in(device).is_host else SERVICE


def prior_for(
    device: str,
    work_class: str,
    *,
    regime: Regime,
    time_us: float,
    has_cycles: bool,
) -> NoisePrior:
    """Return the prior of a variant; ``time_us`` is per launch."""
    if built_in(device).is_host:
        return CPU_GANG if work_class == COLLECTIVE else CPU
    if work_class == COLLECTIVE:
        return GANG
    prior = BY_CLASS[work_class]
    if work_class in (TRANSFER, HOST_COPY):
        return prior
    if regime is Regime.END_TO_END or not has_cycles:
        return HOST if regime is Regime.END_TO_END else ONE_CLOCK
    if time_us >= SHORT_US:
        return prior
    return replace(
        prior,
        between=max(prior.between, SHORT_BETWEEN),
        unit=max(prior.unit, SHORT_UNIT),
        gate=max(prior.gate, SHORT_GATE),
    )


# The estimates of a run, which another run is compared with.


def entries_of(run: Run, given: Iterable[Result] | None = None) -> dict[str, BaselineEntry]:
    """Return the estimate of each variant whose every stage ended ok and yielded a number.

    All processes of all stages count; a stage that was measured again counts once, as it ended.
    Of the run all results that are its own count, if none are ``given``.
    """
    traces = {(trace.variant, trace.arm): trace for trace in run.traces}
    variants = {one.id: one.variant for one in run.every}
    own = run.results if given is None else given
    last = {(result.variant, result.stage): result for result in own}
    measured: dict[str, list[Result]] = {}
    for result in last.values():
        measured.setdefault(result.variant, []).append(result)
    entries = {}
    for name, results in measured.items():
        variant, result = variants.get(name), results[-1]
        evidence = [process for each in results for process in each.evidence]
        metrics = _metrics(evidence, run.facts.unit, variant.case.metrics if variant else ())
        if not metrics or any(each.status is not Status.OK for each in results):
            continue
        trace = traces.get((name, result.arm)) or Trace(variant=name)
        samplings = {process.sampling for process in evidence}
        time = metrics.get(TIME.name)
        entries[name] = BaselineEntry(
            variant=name,
            case_version=result.case_version,
            run=run.id,
            metrics=metrics,
            regime=variant.case.regime.value if variant else "paced",
            state={} if variant and variant.target else dict(run.facts.state),
            artefact=next((process.artefact for process in evidence if process.artefact), ""),
            sampling=samplings.pop() if len(samplings) == 1 else None,
            work_class=class_of(variant, run.sku.slug, time.center) if variant and time else "",
            load=round_digits(foreign_share(evidence)),
            kernels=trace.kernels,
            codes=tuple(structs.replace(code, diff="") for code in trace.codes),
        )
    return entries


def _metrics(
    evidence: Sequence[Evidence], unit: str, declared: Sequence[Metric]
) -> dict[str, BaselineMetric]:
    """Return the metrics of a variant's processes.

    A noisy one has each process's value by unit; one that some processes lack is left out. An
    exact one has no values, and where processes differ in it the worst holds.
    """
    found = {}
    timed = [process for process in evidence if any(process.samples(TIME.name))]
    for metric in (*METRICS, *declared):
        sampled = [process.samples(metric.name) for process in timed]
        least = [min(map(min, filter(None, blocks)), default=0) for blocks in sampled]
        if least and min(least) > 0:  # no logarithm can be taken of others
            spreads, values = components(sampled), dict[str, tuple[float, ...]]()
            for process, blocks in zip(timed, sampled, strict=True):
                key = process.unit or unit
                values[key] = (*values.get(key, ()), round_digits(estimate(blocks)))
            found[metric.name] = BaselineMetric(
                center=round_digits(spreads.center),
                unit=metric.unit,
                better=metric.better,
                within=round_digits(spreads.within),
                between=round_digits(spreads.between),
                values=values,
            )
    own, exact = {metric.name: metric for metric in declared}, dict[str, BaselineMetric]()
    for process in evidence:
        for name, value in process.exact.items():
            counted = Metric(name, "bytes" if name.endswith("bytes") else "count")
            metric = own.get(name, counted)
            choose = min if metric.better == "higher" else max
            worst = choose(value, exact[name].center) if name in exact else value
            exact[name] = BaselineMetric(center=worst, unit=metric.unit, better=metric.better)
    return found | exact
