"""The page that goes with a proposal: of each entry old, new, change, evidence and cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.baselines import Finding, Proposal
from perfsuite.cli.compare import time_of
from perfsuite.explain import Side, explain
from perfsuite.model import BaselineEntry, Change
from perfsuite.report import view
from perfsuite.report.summary import plain
from perfsuite.report.why import headline

_COLUMNS = ("variant", "old", "new", "change", "interval", "nights", "processes", "cards", "why")


def markdown(proposal: Proposal) -> str:
    """Return the page; names and reasons are escaped, never markup."""
    return "\n".join(_lines(proposal)) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of text that may hold anything."""
    cells = [columns, ["---"] * len(columns), *(list(map(plain, row)) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _lines(proposal: Proposal) -> Iterator[str]:
    found = proposal.findings
    proposed = [each for each in found if each.is_proposed]
    waiting = [each for each in found if each.word in {"waiting", "undecided"}]
    counts = Counter(each.word for each in found)
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    yield f"# Baseline proposal: {view.count(len(proposed), 'entry', 'entries')}"
    yield f"\n{told or 'No night says anything new'}. Nothing is committed: review it as git diff."
    for sku in sorted({each.sku for each in proposed}):
        yield f"\n## {plain(sku)}\n"
        own = [each for each in proposed if each.sku == sku]
        yield from table(_COLUMNS, map(_row, own))
        yield ""
        yield from (_cause(each, proposal) for each in own)
    if waiting:
        yield "\n## Not proposed\n"
        yield from table(_COLUMNS, map(_row, waiting))
    yield from _uncounted(proposal)


def _uncounted(proposal: Proposal) -> Iterator[str]:
    """Yield which runs and results are no evidence, and why."""
    if proposal.broken:
        yield "\n## Nights that do not count\n"
        yield from table(("run", "why"), sorted(proposal.broken.items()))
    if proposal.earlier:
        yield "\n## Not later than an entry, and no evidence of it\n"
        rows = [(run, *_earlier(runs, run, proposal)) for run, runs in proposal.earlier.items()]
        yield from table(("entries come from", "runs before it", "why"), rows)
    if proposal.left_out:
        yield "\n## Left out of nights that do\n"
        rows = [(name, run, why) for (name, run), why in sorted(proposal.left_out.items())]
        yield from table(("variant", "run", "why"), rows)


def _earlier(runs: Sequence[str], entry_run: str, proposal: Proposal) -> tuple[str, str]:
    """Return which runs began before an entry's, and what to think of it."""
    span = f"{runs[0]} to {runs[-1]}" if runs[1:] else runs[0]
    nights = [night for found in proposal.findings for night in found.nights]
    has_later = any(run.id > entry_run for night in nights for run in night.runs)
    doubt = "" if has_later else ": if they are newer all the same, a clock was set back"
    return f"{len(runs)}: {span}", f"by their clocks they began before it{doubt}"


def _row(found: Finding) -> tuple[str, ...]:
    change = _telling(found)
    entries = [night.entry for night in found.nights]
    values = [_values(entry) for entry in entries]
    cards = {unit for each in values for unit in each}
    return (
        found.variant,
        time_of(found.old.entry) if found.old else "",
        time_of(found.entry),
        f"{change.metric} {view.percent(change.theta)}" if change else "",
        view.interval(change.low, change.high) if change else "",
        str(len(found.nights)),
        str(sum(len(row) for each in values for row in each.values())),
        str(len(cards)),
        f"{found.word}: {found.why}",
    )


def _values(entry: BaselineEntry) -> dict[str, tuple[float, ...]]:
    metric = entry.metrics.get("time_us")
    return dict(metric.values) if metric else {}


def _telling(found: Finding) -> Change | None:
    """Return the change that moved furthest, seen from its own threshold."""
    known = [each for each in found.changes if each.threshold or each.theta]
    return max(known, key=lambda each: abs(each.theta) / (each.threshold or 1e-9), default=None)


def _cause(found: Finding, proposal: Proposal) -> str:
    """Return the runs behind an entry, the commits between, and what the change is made of."""
    runs = [run for night in found.nights for run in night.runs]
    told = [f"from {', '.join(run.id for run in runs)}"]
    old = found.old.entry if found.old else None
    if old is not None:
        commits = proposal.commits.get(old.run, ""), runs[0].commit
        if all(commits) and commits[0] != commits[1]:
            told.append(f"commits {view.commit(commits[0])}..{view.commit(commits[1])}")
        told.append(_explained(found, old, proposal))
    return f"- **{plain(found.variant)}**: {plain('; '.join(filter(None, told)))}"


def _explained(found: Finding, old: BaselineEntry, proposal: Proposal) -> str:
    new = found.nights[-1].entry
    run = found.nights[-1].runs[-1]
    before = Side(
        kernels=old.kernels,
        codes=old.codes,
        artefact=old.artefact,
        environment=proposal.environments.get(old.run, {}),
    )
    now = Side(
        kernels=new.kernels,
        codes=new.codes,
        artefact=new.artefact,
        environment=run.facts.environment,
    )
    time = next((each for each in found.changes if each.metric == "time_us"), None)
    return headline(explain(time, before, now))
