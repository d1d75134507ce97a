"""Why a variant ended as it did, in the few words that fit beside its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from perfsuite.report import view
from perfsuite.report.subject import Subject
from perfsuite.report.why import headline

# Below this what others take of a device is workers' own ends and starts, as in judge.draft.
NOTABLE_LOAD_PERCENT = 10
# Clauses of a verdict's reason that say why the evidence does not decide.
_DOUBTS = ("one of ", "others took ", "the SM clock moved", "unusable samples", "no longer")


def cause(subject: Subject) -> str:
    """Return what the change and its interval do not say; of doubts what they come from."""
    excepted = subject.verdict.excepted if subject.verdict else None
    return f"{excepted.short}; {_cause(subject)}" if excepted else _cause(subject)


def _cause(subject: Subject) -> str:
    if subject.mark.tone == "unclear":
        return "; ".join(_doubts(subject)) or subject.reason
    clauses = subject.reason.split("; ")
    told = [each for each in clauses if not (subject.telling and " interval " in each)]
    # What stands last is cut off first.
    at = len(told) if subject.mark.tone == "budget" else 0
    told.insert(at, explained(subject))
    return "; ".join(filter(None, told)) or subject.reason


def explained(subject: Subject) -> str:
    """Return what a change is made of in one sentence; nothing where that is not known."""
    return headline(subject.explanation) if subject.explanation else ""


def load_percent(subject: Subject) -> float:
    """Return the most that others took of the device while the variant was measured."""
    blocks = [block for process in subject.evidence for block in process.blocks if block.health]
    return max((block.health.foreign_percent or 0.0 for block in blocks if block.health), default=0)


def _doubts(subject: Subject) -> Iterator[str]:
    load = load_percent(subject)
    if load >= NOTABLE_LOAD_PERCENT:
        yield f"load by others up to {view.number(load, 0)}{view.SPACE}%"
    change = subject.telling
    if change is None:
        yield subject.reason
        return
    yield from (each for each in subject.reason.split("; ") if each.startswith(_DOUBTS))
    yield f"from {view.share(change.detectable)} on a change would be found"
