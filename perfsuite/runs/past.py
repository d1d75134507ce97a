"""What earlier runs on a unit know of each variant: when it was measured, how, at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from perfsuite.model import Result, Run, Stage, Status, Verdict, Word
from perfsuite.runs.folder import last_run

# A variant that none of these runs measured counts as never measured.
MOST_RUNS = 30
# Of a variant's last runs: what a machine does on one night is no estimate.
COSTS = 3
MOVED = frozenset({Word.SLOWER, Word.FASTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A variant's last measuring: in which run and of which commit, and what was left to be said.

    ``doubt`` is why it needs another look, empty if none; ``word`` how it ended. ``costs_s`` are
    seconds of one process of its screens, the newest first.
    """

    run: str
    commit: str
    word: str
    doubt: str = ""
    case_version: int = 1
    costs_s: tuple[float, ...] = ()

    def cost_s(self, processes: int) -> float | None:
        """Return what so many processes of it would take; None where that is not known."""
        return processes * median(self.costs_s) if self.costs_s else None


def past_of(
    folder: Path, *, sku: str, unit: str, variants: Iterable[str], before: str = ""
) -> dict[str, Past]:
    """Return what the runs before one say of variants (ids); those never measured are left out."""
    found: dict[str, Past] = {}
    wanted = set(variants)
    for run in _runs(folder, sku, unit, before):
        for name, past in _of_run(run).items():
            known = found.get(name)
            if known is None:
                found[name] = past
            elif len(known.costs_s) < COSTS:
                found[name] = replace(known, costs_s=(*known.costs_s, *past.costs_s))
        if wanted <= found.keys():
            break
    return found


def _runs(folder: Path, sku: str, unit: str, before: str) -> Iterator[Run]:
    for _ in range(MOST_RUNS):
        run = last_run(folder, sku=sku, unit=unit, before=before)
        if run is None:
            return
        yield run
        before = run.id


def _of_run(run: Run) -> dict[str, Past]:
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    found: dict[str, Past] = {}
    for result in run.asked:
        verdict = verdicts.get(result.variant)
        known = found.get(result.variant)
        if result.status is Status.SKIPPED:
            continue
        word = verdict.word if verdict else result.status
        found[result.variant] = Past(
            run=run.id,
            commit=run.commit,
            word=word.value,
            doubt=_doubt(result, verdict),
            case_version=result.case_version,
            costs_s=known.costs_s if known else _costs(result),
        )
    return found


def _doubt(result: Result, verdict: Verdict | None) -> str:
    """Return why a variant needs another look: what fails is looked at until it does not."""
    if result.status is not Status.OK:
        return result.status.value
    if verdict is None:
        return ""
    if verdict.fails or verdict.word in {Word.UNCLEAR, Word.OVER_BUDGET, Word.SLOWER}:
        return verdict.word.value
    return f"{verdict.word.value}, unconfirmed" if _is_unconfirmed(verdict) else ""


def _is_unconfirmed(verdict: Verdict) -> bool:
    return verdict.word in MOVED and not verdict.confirmation


def _costs(result: Result) -> tuple[float, ...]:
    is_screen = result.stage is Stage.SCREEN and result.wall_s > 0
    return (result.wall_s / max(1, len(result.evidence)),) if is_screen else ()
