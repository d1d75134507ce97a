"""Says which verdicts the baseline's own revision can decide, measured in turns with the tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path

from perfsuite.errors import PerfError
from perfsuite.model import Run, Verdict, Word
from perfsuite.requested import Request
from perfsuite.revision import repository_of, revision_of
from perfsuite.yardstick import Yardstick

# What is measured in turns at most; of more, those that moved furthest. Of a night of 489 variants
# on a card never seen 46 were doubted at first (H200, docs/measured.md).
MOST = 40
# Facts of a run's environment that turns on one card hold still and that nobody installs.
OF_THE_CARD = frozenset({"vbios", "nvlinks"})
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


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield what of the software is another than when the baseline was measured.

    Not what comes with the card, or with its place: that is a card never seen.
    """
    if not before:
        yield "software of which no facts are stored"
    known = before.keys() & now.keys() - OF_THE_CARD
    yield from sorted(key for key in known if before[key] != now[key])


def decided(
    verdicts: Iterable[Verdict], request: Request, run: Run, found: Yardstick, *, devices: int
) -> set[str]:
    """Return the variants that are unclear for a card's sake, which a commit can be asked about.

    More processes on that card would not tell the card from the code, so that these need none. Of
    several ``devices`` another is asked by a confirmation. A shard's are confirmed, for it is
    judged anew when it is merged; and where time is limited, for turns come last.
    """
    doubted = [v for v in verdicts if v.card and v.word is Word.UNCLEAR]
    is_whole = request.against is None and request.shard is None and request.time_s == inf
    if devices > 1 or not is_whole or not doubted:
        return set()
    sources = {v.variant: found.entries[v.variant].run for v in doubted}
    known = {found.commits.get(source, "") for source in sources.values()}
    known = {commit for commit in known if not refusal(commit, run.commit)}
    known &= _existing(request.root, known)
    usable = {
        source
        for source in sources.values()
        if found.commits.get(source, "") in known
        and not any(differing(found.environments.get(source, {}), run.facts.environment))
    }
    askable = [verdict for verdict in doubted if sources[verdict.variant] in usable]
    return {verdict.variant for verdict in by_size(askable)[:MOST]}


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
