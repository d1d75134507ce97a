"""What the last runs on a unit say of variants that have no baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfsuite.model import BaselineEntry, Result, Run, Variant, Word
from perfsuite.runs.estimates import entries_of
from perfsuite.runs.folder import last_run

# A variant that none of this many runs has measured is new; one that had no room for
# all does not count among them, up to so many.
RUNS_BACK, MOST_BACK = 10, 30


def earlier_runs(folder: Path, newest: Run | None) -> Iterator[Run]:
    """Yield the last runs on a unit, newest first."""
    run, whole, back = newest, 0, 0
    while run is not None and whole < RUNS_BACK and back < MOST_BACK:
        yield run
        whole, back = whole + (not run.left_out), back + 1
        run = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=run.id)


def behind(entries: Mapping[str, BaselineEntry], runs: Iterable[Run]) -> Iterator[Result]:
    """Yield the results that entries come from; a report draws them as before."""
    for run in runs:
        names = {name for name, entry in entries.items() if entry.run == run.id}
        yield from (result for result in run.results if result.variant in names)


def latest_entries(
    runs: Sequence[Run], variants: Mapping[str, Variant]
) -> dict[str, BaselineEntry]:
    """Return each variant's newest entry; what was found slower is no yardstick later.

    Nor is what was unclear, where anything else is: code would be compared with itself.
    """
    found: dict[str, BaselineEntry] = {}
    unclear: dict[str, BaselineEntry] = {}
    traced: dict[str, BaselineEntry] = {}
    for entry, word in _usable(runs, variants):
        kind = unclear if word is Word.UNCLEAR else found
        kind.setdefault(entry.variant, entry)
        if entry.kernels and kind is found:
            traced.setdefault(entry.variant, entry)
    return {name: _traced(entry, traced) for name, entry in {**unclear, **found}.items()}


def _usable(
    runs: Sequence[Run], variants: Mapping[str, Variant]
) -> Iterator[tuple[BaselineEntry, Word | None]]:
    for run in runs:
        words = {verdict.variant: verdict.word for verdict in run.verdicts}
        if run.shift is not None:  # nor is what a changed machine measured
            continue
        for name, entry in entries_of(run).items():
            if name in variants and words.get(name) is not Word.SLOWER:
                yield entry, words.get(name)


def _traced(entry: BaselineEntry, traced: Mapping[str, BaselineEntry]) -> BaselineEntry:
    """Return the entry with the kernels of an older one: who did not move was not traced again."""
    known = traced.get(entry.variant)
    if entry.kernels or known is None:
        return entry
    return replace(entry, kernels=known.kernels, codes=known.codes)
