"""Turns the results of a run into the estimates that another run is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfsuite.codec import round_digits
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Evidence,
    Metric,
    Result,
    Run,
    Sampling,
    Stage,
    Status,
    Trace,
    Variant,
    foreign_share,
)
from perfsuite.roofline import class_of
from perfsuite.stats import components, process_value

# The two clocks, the device's own time of what the host is waited for, and the energy of launches
# that follow each other without a gap.
CLOCKS = (
    Metric("time_us", "us"),
    Metric("cycles", "cycles"),
    Metric("device_us", "us"),
    Metric("energy_j", "J"),
)


def entries_of(run: Run) -> dict[str, BaselineEntry]:
    """Return the estimate of each variant whose every stage ended ok and yielded a number.

    All processes of all stages count. A clock has each process's value by unit; an
    exact metric has none, and where processes differ in it the worst holds.
    """
    traces = {(trace.variant, trace.arm): trace for trace in run.traces}
    variants = {variant.id: variant for variant in (*run.canaries, *run.variants)}
    entries = {}
    for name, results in _by_variant(run).items():
        evidence = [process for result in results for process in result.evidence]
        variant = variants.get(name)
        trace = traces.get((name, results[-1].arm)) or Trace(variant=name)
        metrics = _metrics(evidence, run.facts.unit, variant.case.metrics if variant else ())
        if not metrics or any(result.status is not Status.OK for result in results):
            continue
        entries[name] = BaselineEntry(
            variant=name,
            case_version=results[-1].case_version,
            run=run.id,
            metrics=metrics,
            regime=variant.case.regime.value if variant else "paced",
            state={} if variant and variant.target else dict(run.facts.state),
            artefact=next((process.artefact for process in evidence if process.artefact), ""),
            sampling=_sampling(evidence),
            work_class=_class_of(variant, run, metrics),
            load=round_digits(foreign_share(evidence)),
            kernels=trace.kernels,
            codes=tuple(replace(code, diff="") for code in trace.codes),
        )
    return entries


def _class_of(variant: Variant | None, run: Run, metrics: Mapping[str, BaselineMetric]) -> str:
    time = metrics.get("time_us")
    return class_of(variant, run.sku.slug, time.center) if variant and time else ""


def _by_variant(run: Run) -> dict[str, list[Result]]:
    """Return the results by variant; a stage that was measured again counts once, as it ended."""
    last: dict[tuple[str, Stage], Result] = {
        (result.variant, result.stage): result for result in run.results
    }
    found: dict[str, list[Result]] = {}
    for (name, _), result in last.items():
        found.setdefault(name, []).append(result)
    return found


def _sampling(evidence: Sequence[Evidence]) -> Sampling | None:
    """Return how all processes sampled; None where they differ."""
    found = {process.sampling for process in evidence}
    return found.pop() if len(found) == 1 else None


def _metrics(
    evidence: Sequence[Evidence], unit: str, declared: Sequence[Metric]
) -> dict[str, BaselineMetric]:
    """Return the metrics of a variant's processes; a noisy one that some lack is left out."""
    timed = [process for process in evidence if any(process.samples("time_us"))]
    noisy = {
        metric.name: _noisy(metric, timed, unit)
        for metric in (*CLOCKS, *declared)
        if timed and all(_is_measured(process, metric.name) for process in timed)
    }
    return noisy | _exact_metrics(evidence, {metric.name: metric for metric in declared})


def _is_measured(process: Evidence, name: str) -> bool:
    """Say whether a process has samples of this clock that a logarithm can be taken of."""
    samples = [sample for block in process.samples(name) for sample in block]
    return bool(samples) and min(samples) > 0


def _noisy(metric: Metric, evidence: Sequence[Evidence], unit: str) -> BaselineMetric:
    name = metric.name
    values: dict[str, list[float]] = {}
    for process in evidence:
        value = round_digits(process_value(process.samples(name)))
        values.setdefault(process.unit or unit, []).append(value)
    found = components([process.samples(name) for process in evidence])
    return BaselineMetric(
        center=round_digits(found.center),
        unit=metric.unit,
        better=metric.better,
        within=round_digits(found.within),
        between=round_digits(found.between),
        values={key: tuple(row) for key, row in values.items()},
    )


def _exact_metrics(
    evidence: Iterable[Evidence], declared: Mapping[str, Metric]
) -> dict[str, BaselineMetric]:
    worst: dict[str, float] = {}
    for process in evidence:
        for name, value in process.exact.items():
            choose = min if name in declared and declared[name].better == "higher" else max
            worst[name] = choose(value, worst.get(name, value))
    return {name: _exact(declared.get(name, _counted(name)), worst[name]) for name in worst}


def _counted(name: str) -> Metric:
    return Metric(name, "bytes" if name.endswith("bytes") else "count")


def _exact(metric: Metric, value: float) -> BaselineMetric:
    return BaselineMetric(center=value, unit=metric.unit, better=metric.better)
