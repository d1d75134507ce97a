"""All that a run says about one variant, gathered from the stages it went through."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from perfsuite.explain import Explanation, Side, explain
from perfsuite.model import (
    Arm,
    BaselineEntry,
    Change,
    Evidence,
    Health,
    Result,
    Run,
    Series,
    Stage,
    Status,
    Trace,
    Variant,
    Verdict,
    Word,
)
from perfsuite.report import marks, view

TIME = "time_us"
CYCLES = "cycles"
# What moved, or may have.
EXPLAINED = frozenset({Word.SLOWER, Word.FASTER, Word.UNCLEAR, Word.OVER_BUDGET})


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One variant with the result that was judged, the stage before it, and what was before.

    ``result`` is the last stage's, ``screen`` an earlier stage's that is not judged any more.
    ``environment`` is the run's own, ``environments`` those of the runs before, by their ids.
    ``left_out`` says why the run had no time for it.
    """

    variant: Variant
    anchor: str
    result: Result | None = None
    screen: Result | None = None
    verdict: Verdict | None = None
    entry: BaselineEntry | None = None
    before: Result | None = None
    history: Series | None = None
    middles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trace: Trace | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: str = ""

    @cached_property
    def explanation(self) -> Explanation | None:
        """What its change is made of; None where nothing moved that could be explained."""
        if self.verdict is None or self.verdict.word not in EXPLAINED or self.entry is None:
            return None
        now = Side(
            kernels=self.trace.kernels if self.trace else (),
            codes=self.trace.codes if self.trace else (),
            artefact=next((one.artefact for one in self.evidence if one.artefact), ""),
            environment=self.environment,
            health=_health(self.result),
        )
        before = Side(
            kernels=self.entry.kernels,
            codes=self.entry.codes,
            artefact=self.entry.artefact,
            environment=self.environments.get(self.entry.run, {}),
            health=_health(self.before),
        )
        return explain(self.change, before, now)

    @cached_property
    def mark(self) -> marks.Mark:
        """The verdict's word, or how the variant ended where there is no verdict."""
        if self.result is None:
            return marks.mark("left out" if self.left_out else "not run")
        if self.result.status is not Status.OK:
            return marks.mark(self.result.status.value)
        if self.verdict is None:
            return marks.mark("measured" if self.middles.get(TIME) else "checked")
        return marks.mark(self.verdict.word.value)

    @property
    def is_skipped(self) -> bool:
        """Say whether the variant has nothing to show but a reason."""
        return self.result is None or self.result.status is Status.SKIPPED

    @property
    def fails(self) -> bool:
        """Say whether the variant alone fails the run."""
        return self.mark.tone == "fail" or bool(self.verdict and self.verdict.fails)

    @property
    def axes(self) -> list[str]:
        """The axes of the id as they stand there, without reading them."""
        axes = self.variant.id.partition("[")[2].removesuffix("]")
        return axes.split(",") if axes else []

    @property
    def reason(self) -> str:
        """Why the variant ended as it did, in words."""
        if self.result is None:
            return self.left_out or "the run ended before it"
        if self.result.status is not Status.OK or self.verdict is None:
            return self.result.reason
        return self.verdict.reason

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the judged processes have to say."""
        return self.result.evidence if self.result else ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was compared of the variant."""
        return self.verdict.changes if self.verdict else ()

    @cached_property
    def change(self) -> Change | None:
        """The change of time, with the clocks beside it; None where time was not compared."""
        return next((change for change in self.changes if change.metric == TIME), None)

    @property
    def telling(self) -> Change | None:
        """The change that the verdict is about: that of time, unless only another metric moved."""
        moved = [c for c in self.changes if c.low > c.threshold or c.high < -c.threshold]
        return self.change if self.change in moved or not moved else moved[0]

    @property
    def others(self) -> list[Change]:
        """The changes of metrics that are no clock."""
        return [change for change in self.changes if change.metric not in {TIME, CYCLES}]

    def now(self, metric: str = TIME) -> float | None:
        """Return the metric's middle over the judged processes."""
        if metric == TIME and self.change:
            return self.change.current
        found = self.middles.get(metric)
        return statistics.median(found) if found else None

    def baseline(self, metric: str = TIME) -> float | None:
        """Return what the metric was, or None where it may not be compared."""
        if self.verdict is None or self.verdict.word is Word.INCOMPARABLE:
            return None
        if metric == TIME and self.change:
            return self.change.baseline
        stored = self.entry.metrics.get(metric) if self.entry else None
        return stored.center if stored else None

    def noise(self, metric: str = TIME) -> float | None:
        """Return the relative standard deviation from process to process, in this run."""
        logs = [math.log(value) for value in self.middles.get(metric, ()) if value > 0]
        if len(logs) < 2:  # noqa: PLR2004 - a spread takes two
            return None
        # Not statistics.stdev: its exact fractions take most of the time of a large report.
        middle = math.fsum(logs) / len(logs)
        return math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))

    def digits(self, metric: str = TIME) -> float | None:
        """Return the relative noise that a shown value's digits must not go below."""
        stored = self.entry.metrics.get(metric) if self.entry else None
        known = [self.noise(metric), stored.between if stored else None]
        return max((noise for noise in known if noise), default=None)


def centre(evidence: Evidence, metric: str = TIME) -> float | None:
    """Return the middle of one process: the median of its blocks' medians."""
    medians = [statistics.median(block) for block in evidence.samples(metric) if block]
    return statistics.median(medians) if medians else None


def _health(result: Result | None) -> tuple[Health, ...]:
    evidence = result.evidence if result else ()
    return tuple(block.health for one in evidence for block in one.blocks if block.health)


def middles(result: Result | None) -> dict[str, tuple[float, ...]]:
    """Return the middle of each process by clock, and by each other metric that has samples."""
    evidence = result.evidence if result else ()
    others = (name for process in evidence for block in process.blocks for name in block.metrics)
    names = dict.fromkeys((TIME, CYCLES, *others))
    found = {metric: [centre(process, metric) for process in evidence] for metric in names}
    return {
        metric: tuple(value for value in values if value is not None)
        for metric, values in found.items()
    }


def subjects(
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    previous: Run | None,
    history: Mapping[str, Series],
) -> Iterator[Subject]:
    """Yield every variant of the run with what belongs to it, in the run's order."""
    staged = {(result.variant, result.stage): result for result in run.results}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    before = {result.variant: result for result in previous.asked} if previous else {}
    traces = {trace.variant: trace for trace in run.traces if trace.arm is Arm.B}
    left_out = {each.variant: each.reason for each in run.left_out}
    taken: set[str] = set()
    for variant in run.variants:
        screen = staged.get((variant.id, Stage.SCREEN))
        confirm = staged.get((variant.id, Stage.CONFIRM))
        result = confirm or screen
        yield Subject(
            variant=variant,
            anchor=_anchor(variant.id, taken),
            result=result,
            middles=middles(result),
            screen=screen if confirm else None,
            verdict=verdicts.get(variant.id),
            entry=baselines.get(variant.id),
            before=before.get(variant.id),
            history=history.get(variant.id),
            trace=traces.get(variant.id),
            environment=run.facts.environment,
            environments=run.environments,
            left_out=left_out.get(variant.id, ""),
        )


def _anchor(variant: str, taken: set[str]) -> str:
    stem = f"v-{view.slug(variant)}"
    anchor, again = stem, 1
    while anchor in taken:
        again += 1
        anchor = f"{stem}-{again}"
    taken.add(anchor)
    return anchor
