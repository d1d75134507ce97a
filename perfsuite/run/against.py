"""Another commit measured beside the tree, when the user asks and when a baseline leaves doubt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from msgspec.structs import replace

from perfsuite.boundary import PerfError
from perfsuite.model import (
    DIRTY,
    Arm,
    Pack,
    Revision,
    Run,
    Status,
    Tier,
    Tree,
    Variant,
    Verdict,
    Word,
    because,
)
from perfsuite.packs.find import PackSource
from perfsuite.packs.listing import load_catalogue
from perfsuite.run.config import Request
from perfsuite.run.expected import Yardstick
from perfsuite.store.git import check_out, repository_of, revision_of
from perfsuite.workers.process import Code
from perfsuite.workers.server import NOTHING_OF_IT, entries, moved, moved_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The code of both arms, none where a run has one; what is ``compared``, and what is not.

    ``missing`` says by variant why it is judged as in any run.
    """

    revision: Revision | None = None
    code: Mapping[Arm, Code] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)

    def told(self, verdicts: Sequence[Verdict], run: Run) -> tuple[Verdict, ...]:
        """Return the verdicts, with a word where the revision had none to say."""
        if self.revision is None:
            return tuple(verdicts)
        doubts = dict(self.missing)
        for result in run.aside:
            if result.arm is Arm.A and result.status is not Status.OK:
                doubts[result.variant] = f"it ended {result.status.value}: {result.reason}"
        doubts |= dict(of_one_code(run))
        return tuple(
            replace(
                verdict,
                reasons=(
                    *verdict.reasons,
                    because("other_side", revision=str(self.revision), why=told),
                ),
            )
            if (told := doubts.get(verdict.variant))
            else verdict
            for verdict in verdicts
        )

    def unmeasured(self, run: Run, stage: str) -> set[str]:
        """Return the compared variants that a resumed run has no result of arm A of."""
        return set(self.compared) - {r.variant for r in run.aside if r.stage == stage}

    def notes(self) -> tuple[str, ...]:
        """Say how much of the run is not compared with the revision."""
        if not self.missing:
            return ()
        total = len(self.missing) + len(self.compared)
        return (f"{len(self.missing)} of {total} variants are not compared with {self.revision}",)


def open_arms(request: Request, variants: Sequence[Variant], stack: ExitStack) -> Arms:
    """Check the revision out and list its packs; raises UsageError, no arms without a revision."""
    options = request.against
    if options is None:
        return Arms()
    repository = repository_of(options.project)
    revision = revision_of(repository, options.rev)
    root = check_out(repository, revision, folder=request.folder, build=options.build, stack=stack)
    theirs, ours = (_tree(place, repository, options.project) for place in (root, repository))
    usable = [pack for pack in request.packs if not pack.error]
    tier = max((each.tier for each in variants), key=list(Tier).index, default=Tier.SMOKE)
    sources = [
        PackSource(name=p.name, origin=moved_origin(p.origin, theirs), version=p.version)
        for p in usable
    ]
    listed = {
        pack.name: pack
        for pack in load_catalogue(sources, tier=tier, front=entries(theirs, sys.path))
    }
    known = [variant for variant in variants if variant.pack in listed]
    missing = {v.id: why for v in known if (why := _difference(v, listed[v.pack], theirs))}
    return Arms(
        revision=revision,
        code={Arm.A: _code([*listed.values()], theirs), Arm.B: _code(usable, ours)},
        compared=frozenset(variant.id for variant in known) - missing.keys(),
        missing=missing,
    )


def _tree(root: Path, repository: Path, project: Path) -> Tree:
    tree = Tree(str(root), str(repository))
    places = dict.fromkeys((project.resolve(), repository))
    front = [moved(str(each), tree) for place in places for each in (place / "src", place)]
    return replace(tree, front=tuple(front))


def _code(packs: Sequence[Pack], tree: Tree) -> Code:
    return Code(
        origins={pack.name: pack.origin for pack in packs},
        kernels=tuple(kernel for pack in packs for kernel in pack.kernels),
        tree=tree,
    )


def _difference(variant: Variant, theirs: Pack, tree: Tree) -> str:
    """Say why a variant cannot be compared with the revision's, or nothing."""
    if theirs.error:
        place = Path(theirs.origin.partition("@")[2] or theirs.origin.partition(":")[2])
        is_new = place.is_relative_to(tree.root) and not place.exists()
        return "its pack is new" if is_new else f"its pack: {theirs.error.splitlines()[0]}"
    other = next((each for each in theirs.variants if each.id == variant.id), None)
    if other is None:
        return "it is new"
    if other.case.version != variant.case.version:
        return f"the case's version is {other.case.version} there: it does other work"
    if other.case.regime is not variant.case.regime:
        return f"its regime is {other.case.regime.value} there"
    return ""


def of_one_code(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the variants of which both arms ran the same code, and why."""
    for result in run.aside:
        if any(NOTHING_OF_IT in process.notes for process in result.evidence):
            yield result.variant, NOTHING_OF_IT


# What is measured in turns at most; of more, those that moved furthest. Of a night of 489 variants
# on a card never seen 46 were doubted at first (H200, docs/measured.md).
MOST = 40
# Facts of a run's environment that turns on one card hold still and that nobody installs.
OF_THE_CARD = frozenset({"vbios", "nvlinks"})
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

    def size(verdict: Verdict) -> float:
        return max((abs(change.theta) for change in verdict.changes), default=0.0)

    return sorted(verdicts, key=size, reverse=True)


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
    is_there = {
        commit: not refusal(commit, run.commit) and _exists(request.root, commit)
        for commit in {found.commits.get(source, "") for source in sources.values()}
    }
    askable = []
    for verdict in doubted:
        source = sources[verdict.variant]
        other = any(differing(found.environments.get(source, {}), run.facts.environment))
        if is_there[found.commits.get(source, "")] and not other:
            askable.append(verdict)
    return {verdict.variant for verdict in by_size(askable)[:MOST]}


def _exists(root: Path, commit: str) -> bool:
    try:
        revision_of(repository_of(root), commit)
    except PerfError:
        return False
    return True
