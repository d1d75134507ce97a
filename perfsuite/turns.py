"""Says which verdicts the baseline's own revision can decide, measured in turns with the tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from perfsuite.errors import PerfError
from perfsuite.model import BaselineEntry, Verdict
from perfsuite.requested import Request
from perfsuite.revision import repository_of, revision_of

# What is measured in turns at most; of more, those that moved furthest.
MOST = 20
DIRTY = "-dirty"
# As runs and baselines name it; a name, which anything may have, is none.
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def refusal(commit: str, own: str) -> str:
    """Say why a commit cannot be measured beside the tree of commit ``own``, or nothing."""
    if not COMMIT.fullmatch(commit.removesuffix(DIRTY)):
        return "it names no commit of this repository"
    if commit.endswith(DIRTY):
        return f"it is in no commit ({commit})"
    return f"it is this very commit, {commit}" if commit == own else ""


def by_size(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those that moved furthest first."""
    return sorted(verdicts, key=_size, reverse=True)


def decided(
    verdicts: Iterable[Verdict],
    request: Request,
    *,
    entries: Mapping[str, BaselineEntry],
    commits: Mapping[str, str],
    own: str,
) -> frozenset[str]:
    """Return the variants whose doubt a single card is, and that its commit can be asked about.

    More processes on that card would not tell the card from the code, so that they need none.
    ``commits`` are by run, those that ``entries`` come from; ``own`` is this run's.
    """
    doubted = [verdict for verdict in verdicts if verdict.card]
    if request.against is not None or not doubted:
        return frozenset()
    named = {v.variant: commits.get(entries[v.variant].run, "") for v in doubted}
    known = {name for name in {*named.values()} if not refusal(name, own)}
    known &= _existing(request.root, known)
    askable = [verdict for verdict in doubted if named[verdict.variant] in known]
    return frozenset(verdict.variant for verdict in by_size(askable)[:MOST])


def _existing(root: Path, commits: Iterable[str]) -> set[str]:
    try:
        repository = repository_of(root)
    except PerfError:
        return set()
    return {commit for commit in commits if _exists(repository, commit)}


def _exists(repository: Path, commit: str) -> bool:
    try:
        revision_of(repository, commit)
    except PerfError:
        return False
    return True


def _size(verdict: Verdict) -> float:
    return max((abs(change.theta) for change in verdict.changes), default=0.0)
