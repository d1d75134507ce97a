"""Says what is worth knowing before numbers become the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfsuite.baselines.merge import other_kind
from perfsuite.judge import IN_TURNS, Against, learned, level_changes
from perfsuite.model import BaselineEntry, Run, Variant, Word


def caution_of(run: Run, moved: Sequence[str], slower: Mapping[str, str]) -> str:
    """Say what a reader of the diff should know of the run that the moved entries come from."""
    # Against a revision the verdicts say nothing of what is replaced.
    verdicts = [v for v in run.verdicts if v.variant in moved] if run.against is None else []
    counts = {
        "of them slower than before": len(slower),
        "unclear": sum(verdict.word is Word.UNCLEAR for verdict in verdicts),
        "decided in turns on a card that no entry knew": sum(
            verdict.confirmation == IN_TURNS for verdict in verdicts
        ),
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    told += [f"measured in turns with {run.against}"] if run.against and moved else []
    told += [f"of code that is in no commit ({run.commit})"] if "dirty" in run.commit else []
    return ", ".join(told)


def slower_than(
    stored: Mapping[str, BaselineEntry],
    accepted: Mapping[str, BaselineEntry],
    *,
    variants: Sequence[Variant],
    against: Against,
) -> dict[str, str]:
    """Say how much worse than the stored entries accepted ones are, beyond the threshold."""
    against = learned(replace(against, known=tuple(stored.values())), variants)
    found = {}
    for variant in variants:
        old, new = stored.get(variant.id), accepted.get(variant.id)
        if old is None or new is None or other_kind(old, new):
            continue
        changes = level_changes(variant, old, [new], against)
        worse = [each for each in changes if each.theta > each.threshold]
        if worse:
            found[variant.id] = ", ".join(
                f"{c.metric} {c.theta:+.2%} (threshold {c.threshold:.2%})" for c in worse
            )
    return found
