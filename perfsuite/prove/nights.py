"""Compares whole runs of unchanged code: all their variants, as the nights of one project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfsuite.judge import Against, judge, wants_confirmation
from perfsuite.model import BaselineEntry, Result, Run, Stage, Variant, Verdict
from perfsuite.prove.comparisons import Comparison
from perfsuite.prove.subjects import Subject
from perfsuite.runs import entries_of


def nights(runs: Sequence[Run]) -> Iterator[Comparison]:
    """Yield each run's variants against the newest earlier run of them, on each SKU.

    Twice, where there is one on the same unit and one on another. A run is judged by its screen,
    and by its confirmation where that has been measured; no process is on two sides.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    for place, run in enumerate(ordered):
        earlier = [each for each in ordered[:place] if each.sku.slug == run.sku.slug]
        home = [each for each in earlier if each.facts.unit == run.facts.unit]
        away = [each for each in earlier if each.facts.unit != run.facts.unit]
        for group in (home, away):
            yield from _judged(run, _newest(group))


def _newest(runs: Sequence[Run]) -> dict[str, BaselineEntry]:
    return {name: entry for run in runs for name, entry in entries_of(run).items()}


def _judged(run: Run, entries: dict[str, BaselineEntry]) -> Iterator[Comparison]:
    variants = [variant for variant in run.variants if variant.id in entries]
    if not variants:
        return
    against = Against(facts=run.facts, slug=run.sku.slug, known=tuple(entries.values()))
    screens, confirms = _of(run, Stage.SCREEN), _of(run, Stage.CONFIRM)
    verdicts = _by_variant(judge(screens, variants=variants, entries=entries, against=against))
    asked = [name for name, verdict in verdicts.items() if wants_confirmation(verdict)]
    doubtful = {name: confirms[name] for name in asked if name in confirms}
    again = judge(
        doubtful, variants=variants, entries=entries, against=replace(against, screened=screens)
    )
    for verdict in {**verdicts, **_by_variant(again)}.values():
        variant = next(each for each in variants if each.id == verdict.variant)
        yield _comparison(variant, run.facts.unit, entries[variant.id], verdict)


def _comparison(variant: Variant, unit: str, entry: BaselineEntry, verdict: Verdict) -> Comparison:
    subject = Subject(name=f"{variant.pack} pack, whole runs", base=variant, planted={})
    units = {name for metric in entry.metrics.values() for name in metric.values}
    return Comparison(
        subject=subject, change=0.0, before=tuple(sorted(units)), unit=unit, verdict=verdict
    )


def _of(run: Run, stage: Stage) -> dict[str, Result]:
    return {result.variant: result for result in run.asked if result.stage is stage}


def _by_variant(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    return {verdict.variant: verdict for verdict in verdicts}
