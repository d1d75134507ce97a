"""Another commit, side A, measured beside the tree, side B."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path

from msgspec.structs import replace

from perfsuite.boundary import PerfError
from perfsuite.model import (
    DIRTY,
    Pack,
    Reason,
    Revision,
    Run,
    Side,
    Stage,
    Status,
    Tier,
    Tree,
    Variant,
    Verdict,
    Word,
    because,
)
from perfsuite.run.config import Config
from perfsuite.store.git import check_out, knows, repository_of, revision_of
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.process import Code
from perfsuite.workers.server import FROM_THERE, NOTHING_OF_IT, moved, moved_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The code of both sides, none where a run has one; what is ``compared``, and what is not.

    ``missing`` says by variant why it is judged as in any run: because it is new, or is not
    measured there although it could be.
    """

    revision: Revision | None = None
    code: Mapping[Side, Code] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    missing: Mapping[str, Reason] = field(default_factory=dict)

    def doubts(self, run: Run, verdicts: Iterable[Verdict], stage: Stage) -> dict[str, Reason]:
        """Return the verdicts of a stage about which the revision had nothing to say, and why."""
        found, revision = dict(self.missing), str(self.revision)
        of_a = {r.variant: r for r in run.aside if r.side is Side.A and r.stage is stage}
        for name in {v.variant for v in verdicts if not v.in_turns} & self.compared:
            ended, why, remedy = of_a.get(name), "it has no usable samples", QUIET
            if ended and ended.status is not Status.OK:
                why = f"it ended {ended.status.value}: {ended.reason}"
                remedy = QUIET if ended.status is Status.DISTURBED else MAKE
            found[name] = because("unmeasured", revision=revision, why=why, remedy=remedy)
        of_one = dict(of_one_code(run)) if self.revision else {}
        return found | {
            name: because("unmeasured", revision=revision, why=why, remedy=INSTALL)
            for name, why in of_one.items()
        }

    def notes(self) -> Iterator[str]:
        """Say how much of the run is not compared with the revision."""
        if self.missing:
            total = len(self.missing) + len(self.compared)
            yield f"{len(self.missing)} of {total} variants are not compared with {self.revision}"


def open_sides(config: Config, variants: Sequence[Variant], stack: ExitStack) -> Sides:
    """Check the revision out and list its packs; raises UsageError, nothing without a revision."""
    if config.against is None:
        return Sides()
    project = config.project
    repository = repository_of(project)
    revision = revision_of(repository, config.against)
    root = check_out(
        repository, revision, folder=config.folder, build=config.against_build, stack=stack
    )
    theirs, ours = (_tree(place, repository, project) for place in (root, repository))
    usable = [pack for pack in config.packs if not pack.error]
    tier = max((each.tier for each in variants), key=list(Tier).index, default=Tier.SMOKE)
    sources = [
        Pack(name=each.name, origin=moved_origin(each.origin, theirs), version=each.version)
        for each in usable
    ]
    listed = {pack.name: pack for pack in load_catalogue(sources, tier=tier, tree=theirs)}
    new = {pack.name for pack in usable if _is_new(pack, theirs)}
    known = [variant for variant in variants if variant.pack in listed]
    missing = {}
    for one in known:
        pack = listed[one.pack]
        if why := "its pack is new" if one.pack in new else _difference(one, pack):
            missing[one.id] = because("other_side", revision=str(revision), why=why)
        elif pack.error:
            why = f"its pack: {pack.error.splitlines()[0]}"
            facts = {"revision": str(revision), "why": why, "remedy": MAKE}
            missing[one.id] = because("unmeasured", **facts)
    return Sides(
        revision=revision,
        code={Side.A: _code([*listed.values()], theirs), Side.B: _code(usable, ours)},
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


def _is_new(pack: Pack, tree: Tree) -> bool:
    """Say whether a pack is code of the repository that the tree does not have yet.

    What git does not know of is built, or is another repository's: the tree lacks it all the same.
    """
    place = pack.place
    if not place:  # installed, perhaps from the repository
        name = pack.origin.partition(":")[2]
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(re.split(r"[.:@]", name)[0])
            place = (spec and spec.has_location and spec.origin) or ""
    twin = moved(place, tree)
    return twin != place and not Path(twin).exists() and knows(Path(tree.repository), Path(place))


def _difference(variant: Variant, theirs: Pack) -> str:
    """Say why a variant is not the revision's; nothing if it is, or its pack cannot be listed."""
    if theirs.error:
        return ""
    other = next((each for each in theirs.variants if each.id == variant.id), None)
    if other is None:
        return "it is new"
    if other.case.version != variant.case.version:
        return f"the case's version is {other.case.version} there: it does other work"
    if other.case.regime is not variant.case.regime:
        return f"its regime is {other.case.regime.value} there"
    return ""


def of_one_code(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the variants of which both sides ran the same code, and why."""
    for result in run.aside:
        if any(NOTHING_OF_IT in process.notes for process in result.evidence):
            yield result.variant, NOTHING_OF_IT


# What helps where a revision was asked for and not measured.
MAKE = f"name another revision, or {FROM_THERE}"
INSTALL = (
    "install the code under test from the repository (pip install -e), or name its repository "
    "(--perf-repo), or the packs that are of it (--perf-packs)"
)
QUIET = "end other work on this machine and measure again"
# What is measured in turns at most; of more, those that moved furthest. Of a night of 489 variants
# on a card never seen 46 were doubted at first (H200, docs/measured.md).
MOST = 40
# Facts of a run's environment that turns on one card hold still and that nobody installs.
OF_THE_CARD = frozenset({"vbios", "nvlinks"})
# As runs and baselines name it; a name, which anything may have, is none.
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def unaskable(commit: str, own: str) -> str:
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


def askable(verdicts: Iterable[Verdict], config: Config, run: Run, *, devices: int) -> set[str]:
    """Return the variants that are unclear for a card's sake, which a commit can be asked about.

    More processes on that card would not tell the card from the code, so that these need none. Of
    several ``devices`` another is asked by a confirmation. A shard's are confirmed, for it is
    judged anew when it is merged; and where time is limited, for turns come last.
    """
    is_whole = config.against is None and config.shard is None and config.time_s == inf
    if devices > 1 or not is_whole:
        return set()
    held = {one.id: one.expected for one in run.variants}

    @cache
    def is_there(commit: str) -> bool:
        with suppress(PerfError):
            revision_of(repository_of(config.root), commit)
            return True
        return False

    found = [
        verdict
        for verdict in verdicts
        if verdict.card
        and verdict.word is Word.UNCLEAR
        and not unaskable((expected := held[verdict.variant]).commit, run.commit)
        and is_there(expected.commit)
        and not any(differing(expected.environment, run.facts.environment))
    ]
    return {verdict.variant for verdict in by_size(found)[:MOST]}
