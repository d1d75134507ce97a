"""Another commit, side A, measured beside the tree, side B."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from random import Random
from zipfile import BadZipFile

from msgspec.structs import replace
from packaging.requirements import Requirement

from perfsuite.boundary import PerfError, UsageError
from perfsuite.model import (
    SHORT_COMMIT,
    Pack,
    Reason,
    Revision,
    Run,
    Side,
    Source,
    Stage,
    Status,
    Tier,
    Tree,
    Variant,
    VariantRun,
    Verdict,
    Wheel,
    because,
    is_host_timed,
)
from perfsuite.packs.find import file_of, modules_of, unpacked, wheels_of
from perfsuite.report import view
from perfsuite.run.config import STATE_FOLDER, Config
from perfsuite.store.files import locked
from perfsuite.store.git import (
    FOLDER,
    check_out,
    hold,
    is_shallow,
    knows,
    own_trees,
    repository_of,
    revision_of,
    source_in,
)
from perfsuite.store.sku import version_changes
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, load_catalogue
from perfsuite.workers.server import FROM_THERE, INSTALLED, NOTHING_OF_IT, moved, moved_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The code of both sides, none where a run has one; what is ``compared``, and what is not.

    ``missing`` says by variant why it is judged as in any run: because it is new, or is not
    measured there although it could be. ``others`` are versions that the environment of side A has.
    """

    revision: Revision | None = None
    code: Mapping[Side, Code] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    missing: Mapping[str, Reason] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def doubts(self, run: Run, verdicts: Iterable[Verdict], stage: Stage) -> dict[str, Reason]:
        """Return the verdicts of a stage about which the revision had nothing to say, and why."""
        found, revision = dict(self.missing), str(self.revision)
        of_a = {one.id: one.result(stage, Side.A) for one in run.variants}
        for name in {v.variant for v in verdicts if not v.in_turns} & self.compared:
            ended, why, remedy = of_a.get(name), "it has no usable samples", QUIET
            make = BRING if self.revision and self.revision.place else MAKE
            if ended and ended.status is Status.WRONG:  # and repaired since
                why = f"it is wrong there: {ended.reason}"
                found[name] = because("other_side", revision=revision, why=why)
                continue
            if ended and ended.status is not Status.OK:
                why = f"it ended {ended.status.value}: {ended.reason}"
                remedy = QUIET if ended.status is Status.DISTURBED else make
            found[name] = because("unmeasured", revision=revision, why=why, remedy=remedy)
        for name, why in of_one_code(run) if self.revision else ():
            found[name] = because("unmeasured", revision=revision, why=why, remedy=INSTALL)
        return found

    def seen_by(self, panel: Panel) -> Sides:
        """Return the sides, with the versions that side A's environment has on a device."""
        if self.revision is None or not self.revision.place:
            return self
        there = panel.facts_in(panel.slots_of(Side.A)[0]).environment
        both = (self.code[Side.A].python, there), (sys.executable, panel.facts.environment)
        told = version_changes(*({**_distributions(python), **known} for python, known in both))
        changed = replace(self.revision, environment=there)
        return dataclasses.replace(self, revision=changed, others=told)

    def notes(self) -> Iterator[str]:
        """Say what of its environment is another, and how much is not compared with it."""
        if self.revision and self.revision.place:
            yield f"{self.revision.place}: {', '.join(self.others) or 'the same versions as here'}"
        if self.missing:
            total = len(self.missing) + len(self.compared)
            yield f"{len(self.missing)} of {total} variants are not compared with {self.revision}"


class NoSideAError(PerfError):
    """The code that an entry comes from cannot be measured; ``reason`` says why, by its kind."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(view.sentence(reason))


def open_sides(config: Config, variants: Sequence[Variant], stack: ExitStack) -> Sides:
    """Make side A's code ready and list its packs: that of the revision, or of a source.

    Nothing without either, but the tree's own code in another environment. Raises UsageError, and
    NoSideAError where a source can be none of the variants' side A; where it can be that of some,
    ``missing`` has its reason for the others.
    """
    source, place = config.source, config.against_env or ""
    python = python_of(place, config.folder) if place else ""
    usable = [pack for pack in config.packs if not pack.error]
    if source is None and config.against is None:
        code = {Side.A: Code.of(usable, python=python), Side.B: Code.of(usable)}
        every, tree = frozenset(variant.id for variant in variants), Revision("", "", place)
        return Sides(revision=tree, code=code, compared=every) if place else Sides()
    revision, theirs, ours = _trees_of(config, variants, stack)
    tier = max((each.tier for each in variants), key=list(Tier).index, default=Tier.SMOKE)
    sources = [
        Pack(name=each.name, origin=moved_origin(each.origin, theirs), version=each.version)
        for each in usable
    ]
    listed = {pack.name: pack for pack in load_catalogue(sources, tier=tier, tree=theirs)}
    new = {pack.name for pack in usable if _is_new(pack, theirs, source)}
    known = [variant for variant in variants if variant.pack in listed]
    missing = {}
    for one in known:
        pack = listed[one.pack]
        if why := "its pack is new" if one.pack in new else _difference(one, pack):
            missing[one.id] = because("other_side", revision=str(revision), why=why)
        elif pack.error:
            why = f"its pack: {pack.error.splitlines()[0]}"
            facts = {"revision": str(revision), "why": why, "remedy": MAKE}
            missing[one.id] = _unlisted(pack, source) if source else because("unmeasured", **facts)
    if source and known and all(listed[one.pack].error for one in known):
        raise NoSideAError(_unlisted(listed[known[0].pack], source))
    return Sides(
        revision=replace(revision, place=place),
        code={Side.A: Code.of([*listed.values()], theirs, python), Side.B: Code.of(usable, ours)},
        compared=frozenset(variant.id for variant in known) - missing.keys(),
        missing=missing,
    )


def python_of(place: str, folder: Path) -> str:
    """Return the Python of an environment: a folder, or made of requirements in ``folder``.

    UsageError where there is none, or where what it lacks cannot come from this environment.
    """
    home = Path(place).expanduser()
    home = home if home.is_dir() else _made(place, folder / "environments")
    python, own = home.absolute() / "bin" / "python", "{}.{}".format(*sys.version_info)
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    found = _said([str(python), "-c", ask], remedy="make it anew: python -m venv FOLDER")
    if found != own:
        what = f"the environment has Python {found}, and perfsuite runs in Python {own}"
        raise UsageError(what, where=str(python), remedy=f"make one of Python {own}")
    return str(python)


def _made(place: str, folder: Path) -> Path:
    try:
        wanted = [str(Requirement(word)) for word in shlex.split(place)]
    except ValueError as error:  # InvalidRequirement is one
        what = f"{place!r} is no folder and no requirement: {str(error).splitlines()[0]}"
        remedy = "name a virtual environment, or packages such as triton==3.6.0"
        raise UsageError(what, where="--perf-against-env", remedy=remedy) from error
    key = hashlib.sha256(repr((sys.version, sorted(wanted))).encode()).hexdigest()[:16]
    home, part = folder / key, folder / f"{key}.part"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not home.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            _said([sys.executable, "-m", "venv", "--without-pip", str(part)])
            pip = [sys.executable, "-m", "pip", "--python", str(part / "bin" / "python")]
            _said([*pip, "install", "--quiet", *wanted])
            part.rename(home)
    return home


def _distributions(python: str) -> dict[str, str]:
    """Return the versions of all distributions that a Python finds."""
    ask = "print(*(f'{d.name}={d.version}' for d in distributions()), sep='\\n')"
    said = _said([python, "-P", "-c", f"from importlib.metadata import distributions; {ask}"])
    return dict(line.split("=", 1) for line in said.splitlines())


def _said(command: Sequence[str], *, remedy: str = "run this command yourself") -> str:
    """Return what a command prints; UsageError with the last line of its errors if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().rpartition("\n")[2]
        what = f"the environment for side A cannot be used: {told}"
        raise UsageError(what, where=shlex.join(command), remedy=remedy) from error
    return done.stdout.strip()


def _is_new(pack: Pack, tree: Tree, source: Source | None) -> bool:
    """Say whether a pack's module is code of the repository that the tree does not have yet.

    What git does not know of is built, or is another repository's: the tree lacks it all the same.
    """
    if not (file := file_of(pack)) or (twin := Path(moved(str(file), tree))) == file:
        return False
    # It may have been a file, and be a package now.
    stem = twin.parent if twin.stem == "__init__" else twin.with_name(twin.name.partition(".")[0])
    is_there = twin.exists() or PathFinder.find_spec(stem.name, [str(stem.parent)])
    is_wheel = source is not None and source.wheel is not None
    return not is_there and (is_wheel or knows(Path(tree.repository), file))


def _unlisted(pack: Pack, source: Source) -> Reason:
    """Say why side A's pack cannot be listed."""
    why, is_old = pack.error.partition("\n")[0], OTHER_DOOR.search(pack.error)
    kind, remedy = ("old_front_door", AGAIN) if is_old else ("no_build", BUILD)
    return because(kind, code=str(source), why=why, remedy=remedy)


def _trees_of(
    config: Config, variants: Sequence[Variant], stack: ExitStack
) -> tuple[Revision, Tree, Tree]:
    """Make side A's code ready: return what it is, its tree and ours.

    All of the variants' packs have that of a source as theirs.
    """
    source, own = config.source, {variant.pack for variant in variants}
    pack = next((pack for pack in config.packs if pack.name in own), None)
    if source and pack and source.wheel:
        return _of_wheel(config, pack, source.wheel)
    if source and pack:
        repository, revision = _kept_at(source, pack)
    else:
        repository = repository_of(config.project)
        revision = revision_of(repository, str(config.against))
    with _readying(str(source)) if source else nullcontext():
        root = check_out(
            repository, revision, folder=config.folder, build=config.against_build, stack=stack
        )
    project = config.project.resolve()
    places = dict.fromkeys([project] * project.is_relative_to(repository) + [repository])
    front = [str(each) for place in places for each in (place / "src", place)]
    theirs, ours = (Tree(str(top), str(repository)) for top in (root, repository))
    own_front = tuple(moved(each, theirs) for each in front)
    return revision, replace(theirs, front=own_front), replace(ours, front=tuple(front))


def _kept_at(source: Source, pack: Pack) -> tuple[Path, Revision]:
    """Return the repository that a source of a pack is in, and the revision that it is there."""
    repository = _repository_of(pack)
    if repository is None or not (source.commit or source.is_changed):
        raise NoSideAError(because("no_git", pack=pack.name, remedy=GIT))
    try:
        named = source.commit if COMMIT.fullmatch(source.commit) else ""
        commit = revision_of(repository, named).commit
    except UsageError as error:
        is_cut = is_shallow(repository) and not source.is_changed
        kind, remedy = ("shallow", DEEPEN) if is_cut else ("squashed", FETCH)
        raise NoSideAError(because(kind, code=str(source), remedy=remedy)) from error
    return repository, Revision(commit, "a changed tree" if source.is_changed else "")


def _of_wheel(config: Config, pack: Pack, wheel: Wheel) -> tuple[Revision, Tree, Tree]:
    code, name = f"{wheel.name} {wheel.version}", f"{wheel.name}=={wheel.version}"
    file, names = file_of(pack), modules_of(pack)
    depth = len(names) - (file is not None and file.stem != "__init__")
    home = Path(pack.folder) if pack.place or not file else file.parents[depth]
    root: Path | None = home
    if wheels_of([pack]).get(pack.name) != wheel:
        with _readying(code):
            root = unpacked(wheel, config.wheels, config.folder / FOLDER)
    if root is None:
        folder = next(iter(config.wheels), Path("wheels"))
        remedy = shlex.join(["pip", "download", "--no-deps", name, "-d", str(folder)])
        remedy += ", and name the folder in perf_wheels of pyproject.toml"
        raise NoSideAError(because("no_wheel", code=code, remedy=remedy))
    front = (str(root),) if root != home else ()
    theirs, ours = Tree(str(root), str(home), front), Tree(str(home), str(home))
    return Revision("", code), theirs, ours


@contextmanager
def _readying(code: str) -> Iterator[None]:
    try:
        yield
    except (PerfError, OSError, BadZipFile) as error:
        why = str(error).partition("\n")[0].removesuffix(":")
        raise NoSideAError(because("no_build", code=code, why=why, remedy=BUILD)) from error


def _repository_of(pack: Pack) -> Path | None:
    """Return the repository that a pack's module is code of; None where it is in none."""
    file = file_of(pack)
    with suppress(UsageError):
        if file and INSTALLED.isdisjoint(file.parts):
            repository = repository_of(file.parent)
            return repository if knows(repository, file) else None
    return None


# Where packs' code comes from.


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    try:
        yield
    except (PerfError, OSError) as error:
        why = str(error).replace("\n ", ";")
        notes.append(f"its changed tree is not kept, and cannot be side A later: {why}")


def keep_sources(trees: Mapping[Path, str], run: str, notes: list[str]) -> None:
    """Keep the commits that ``sources_of`` made for a run, so that they can be side A."""
    for repository, commit in trees.items():
        with _noting(notes):
            hold(repository, run, commit)


def sources_of(config: Config, notes: list[str]) -> tuple[dict[str, Source], dict[Path, str]]:
    """Return where the code of the packs comes from now, and what was made of changed trees.

    Nothing is known of what is in no repository, and not in a wheel. What cannot be kept is noted.
    """
    usable = [pack for pack in config.packs if not pack.error]
    packs = [file.resolve() for pack in usable if (file := file_of(pack))]
    # What runs write there says nothing of the code, unless a pack lies there as well.
    written = (config.root / STATE_FOLDER, config.report, *config.baselines)
    places = [path.resolve() for path in written]
    apart = [each for each in places if not any(file.is_relative_to(each) for file in packs)]
    found = {name: Source(wheel=wheel) for name, wheel in wheels_of(usable).items()}
    known, files = dict[Path, Source](), dict[Path, dict[str, Path]]()
    for pack in (pack for pack in usable if pack.name not in found):
        file, repository = file_of(pack), _repository_of(pack)
        if file is None or repository is None:
            found[pack.name] = Source()
            continue
        if repository not in known:
            known[repository] = Source(is_changed=True)
            with _noting(notes):
                known[repository] = source_in(repository, apart)
        found[pack.name] = known[repository]
        # Who makes cases of the kernels of all packs uses all of them.
        own = Path(repository, file.name) if pack.wants_kernels else file.resolve()
        files.setdefault(repository, {})[pack.name] = own
    kept = {top: source for top, source in known.items() if source.commit}
    for top, source in kept.items():
        for name, tree in own_trees(top, source.commit, files[top], places).items():
            found[name] = replace(found[name], tree=tree)
    return found, {top: source.commit for top, source in kept.items() if source.is_changed}


def is_same_code(one: Source | None, other: Source | None) -> bool:
    """Say whether two sources are known to be the same code."""
    if one is None or other is None:
        return False
    if one.wheel or other.wheel:
        return one.wheel == other.wheel
    short, long = sorted((one.commit, other.commit), key=len)
    is_one_commit = len(short) >= SHORT_COMMIT and long.startswith(short)
    return is_one_commit or (bool(one.tree) and one.tree == other.tree)


def by_source(some: Iterable[VariantRun]) -> list[tuple[Source, list[VariantRun]]]:
    """Return variants by the code that their entries come from, the newest entry's first."""
    groups: list[tuple[Source, list[VariantRun]]] = []
    for one in some:
        if source := one.expected.source_a:
            same = (own for known, own in groups if known == source or is_same_code(known, source))
            if (own := next(same, None)) is not None:
                own.append(one)
            else:
                groups.append((source, [one]))
    newest = {id(own): max(one.entry.run for one in own if one.entry) for _, own in groups}
    return sorted(groups, key=lambda group: newest[id(group[1])], reverse=True)


def is_one_code(one: VariantRun, run: Run) -> bool:
    """Say whether a variant's code is known to be what its entry was measured with."""
    return is_same_code(one.expected.source_a, run.sources.get(one.variant.pack))


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
BRING = "install there what it needs, or name another environment"
INSTALL = (
    "install the code under test from its repository (pip install -e). "
    "Or name the repository (perf_repo), or its packs (--perf-packs)"
)
QUIET = "end other work on this machine and measure again"
# What helps where the code that an entry comes from cannot be side A.
AGAIN = "measure and accept it again"
BUILD = f"{FROM_THERE}; or {AGAIN}"
DEEPEN = "git fetch --unshallow; in a workflow fetch-depth: 0 of actions/checkout"
FETCH = f"fetch the branch or tag that has it, or {AGAIN}"
GIT = f"install the pack from its repository (pip install -e), or {AGAIN} under git or as a wheel"
# What a pack of another perfsuite fails by when it is listed. What it declares are Structs.
OTHER_DOOR = re.compile(
    r"(?:ImportError|ModuleNotFoundError|AttributeError): .*'perfsuite(?:\.[\w.]+)?'"
    r"|TypeError: (?:Unexpected|Missing required) [a-z ]*argument"
    r"|a hook is not as specified|declares something of a wrong type"
)
# Where more have moved, so many speak for all. Of a night of 489 variants on a card never seen 46
# were doubted at first (H200, docs/lab/notebook.md).
MOST_PAIRED = 40
# Pairs are taken with the code of so many commits: each is checked out, built and listed.
MOST_SOURCES = 3
# As runs and baselines name it; a name, which anything may have, is none.
COMMIT = re.compile(r"[0-9a-f]{7,40}")


def chosen_of(some: Sequence[VariantRun], seed: int, device: str) -> list[VariantRun]:
    """Return those of variants, sorted by size, that pairs are taken of next: all, if they are few.

    Else those that were compiled to something else, what the host times, for which no other can
    speak, the largest other changes, and as many by chance.
    """
    if len(some) <= MOST_PAIRED:
        return [*some]
    others = [o for o in some if o.is_built_anew or is_host_timed(device, o.variant.case.regime)]
    rest = [one for one in some if one not in others]
    largest, rest = rest[: MOST_PAIRED // 2], rest[MOST_PAIRED // 2 :]
    by_chance = Random(seed).sample(rest, min(len(rest), MOST_PAIRED // 2))  # noqa: S311 - no secret
    return [*others, *largest, *by_chance]


def by_size(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those that moved furthest first."""
    return sorted(verdicts, key=lambda v: -max((abs(c.theta) for c in v.changes), default=0.0))
