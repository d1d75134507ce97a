"""Why a variant ended as it did: its doubts, and what features tell of a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from markupsafe import Markup
from msgspec import Struct

from perfsuite.hooks import features
from perfsuite.model import BaselineEntry, Change, Code, Health, Result, TracedKernel, Word
from perfsuite.report import view
from perfsuite.report.data import VariantView

# Below this what others take of a device is workers' own ends and starts, as in judge.verdict.
NOTABLE_LOAD_PERCENT = 10
# Reasons that say why the evidence does not decide.
_DOUBTS = {"clock_lost", "load", "load_before", "lost", "unusable", "weak"}


class Side(Struct, frozen=True, kw_only=True):
    """A variant before or now, as far as that is known; ``health`` is that of each block."""

    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()
    artefact: str = ""
    environment: Mapping[str, str] = {}
    health: tuple[Health, ...] = ()

    @classmethod
    def of(
        cls, entry: BaselineEntry, environment: Mapping[str, str], result: Result | None = None
    ) -> Side:
        """Return what an entry knows, and the health of the result that it is of."""
        return cls(
            kernels=entry.kernels,
            codes=entry.codes,
            artefact=entry.artefact,
            environment=environment,
            health=_health(result),
        )


def cause(subject: VariantView) -> str:
    """Return what the change and its interval do not say; of doubts what they come from."""
    verdict = subject.verdict
    if subject.mark.tone == "unclear":
        told = [*_doubts(subject)]
    else:
        reasons = verdict.reasons if verdict else ()
        shown = (each for each in reasons if not (subject.telling and each.kind == "interval"))
        told = [view.sentence(each) for each in shown]
        # What stands last is cut off first.
        told.insert(len(told) if subject.mark.tone == "budget" else 0, explained(subject))
    excepted = verdict.excepted.short if verdict and verdict.excepted else ""
    why = "; ".join(filter(None, told)) or subject.reason
    return f"{excepted}; {why}" if excepted else why


def sides_of(subject: VariantView) -> tuple[Side, Side] | None:
    """Return the variant before and now, where it may have moved; None where it did not."""
    entry, trace = subject.entry, subject.trace
    word = subject.verdict.word if subject.verdict else Word.SAME
    if entry is None or not (word.asks_why or word is Word.UNCLEAR):
        return None
    before = Side.of(entry, subject.environment, subject.before)
    now = Side(
        kernels=trace.kernels if trace else (),
        codes=trace.codes if trace else (),
        artefact=next((one.artefact for one in subject.evidence if one.artefact), ""),
        environment=subject.run.facts.environment,
        health=_health(subject.result),
    )
    return before, now


def explained(subject: VariantView) -> str:
    """Return what a change is made of in one sentence; nothing where that is not known."""
    sides = sides_of(subject)
    return explained_by(subject.change, *sides) if sides else ""


def explained_by(change: Change | None, before: Side, now: Side) -> str:
    """Return what a change from one side to the other is made of, as a feature tells it."""
    told = features().hook.perf_explained(change=change, before=before, now=now)
    return "; ".join(filter(None, told))


def sections(subject: VariantView) -> Markup:
    """Return what features show of a variant on the page."""
    return Markup("").join(features().hook.perf_variant_section(subject=subject))


def _health(result: Result | None) -> tuple[Health, ...]:
    evidence = result.evidence if result else ()
    return tuple(block.health for one in evidence for block in one.blocks if block.health)


def load_percent(subject: VariantView) -> float:
    """Return the most that others took of the device while the variant was measured."""
    blocks = [block for process in subject.evidence for block in process.blocks if block.health]
    return max((block.health.foreign_percent or 0.0 for block in blocks if block.health), default=0)


def _doubts(subject: VariantView) -> Iterator[str]:
    load = load_percent(subject)
    if load >= NOTABLE_LOAD_PERCENT:
        yield f"load by others up to {view.number(load, 0)}{view.SPACE}%"
    change = subject.telling
    if change is None:
        yield subject.reason
        return
    reasons = subject.verdict.reasons if subject.verdict else ()
    yield from (view.sentence(each) for each in reasons if each.kind in _DOUBTS)
    yield f"from {view.share(change.detectable)} on a change would be found"
