"""Asks git: which code runs, what it was changed by, and the tree of another commit.

A changed tree that was measured is kept as a commit of ours. The user's index, HEAD, branches and
stash stay as they are.

The folder decides which repository is meant, not the environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from operator import itemgetter
from pathlib import Path

from perfsuite import boundary
from perfsuite.boundary import UsageError, plain
from perfsuite.model import Pack, Revision, Source, Variant
from perfsuite.store import baselines
from perfsuite.store.files import locked

# In the environment of git's hooks these name the repository that the hook is of.
REPOSITORY_NAMES = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE",
    "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE",
]  # fmt: skip
# A checkout of a large repository may take that long.
GIT_LIMIT_S = 300.0
# Checkouts of other revisions lie in this folder of .perfsuite, the last used ones: a build may
# have taken long.
FOLDER, KEPT = "against", 3
TAIL_CHARACTERS = 2000
OPTION = "--perf-against"
# Neither what is written while a run goes on (reports, logs) nor what is built of sources is code.
CODE = frozenset({".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hip", ".hpp", ".hxx"})
CODE |= {".f90", ".inc", ".inl", ".ipp", ".ll", ".metal", ".mlir", ".ptx", ".pxd", ".py", ".pyx"}
CODE |= {".rs", ".s", ".tpp"}
# Nor is it data, unless it lies in a package; what is accepted may lie there, too.
DATA = frozenset({".csv", ".json", ".npy", ".npz", ".toml", ".yaml", ".yml"})
DIGITS = 12
# What lies in any pack's folder, and is imported by none.
NO_MODULES = frozenset({"conftest", "docs", "setup", "tests"})
# Folders whose files a pack uses only if it lies there, or if something names what lies there:
# by an import, or with a dot. Then helpers there are used, and no tests.
APART = re.compile(r"(?:.*/)?(?:docs|tests|\.[^/]*)/")
NAMED = r"\b(docs|tests)\b.*import|import.*\b(docs|tests)\b|\btests\.\w|\w\.(docs|tests)\b"
TEST = re.compile(r"(?:.*/)?(?:\..*|test_[^/]*|[^/]*_test\.py|conftest\.py|conf\.py)")
# Of submodules what git knows counts, whatever is set for them.
SUBMODULES = "--ignore-submodules=untracked"
# Changed trees that were measured, by run. No push takes them along but one of --mirror.
# Each is a commit of what it changed alone: so many outlast whatever a run is compared with.
REFS, MOST_REFS = "refs/perfsuite", 1000
# Of more in files that git does not know no tree is kept: it would never leave the repository.
MOST_UNKNOWN_BYTES = 64 << 20
# Ours, so that the same tree is the same commit whoever measures it, and whenever.
OURS = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "perfsuite"), ("EMAIL", "none"), ("DATE", "@0 +0000"))
}
# The remotes that a forge shows: https, ssh, and ssh as scp has it. A host without a dot is an
# alias of ssh's. Credentials are left behind, and so is the port of ssh.
_HOST, _USER = r"((?:[a-z\d-]+\.)+[a-z\d-]+", r"(?:[^/@]*@)?"
_REMOTE = re.compile(
    rf"(?:https://{_USER}{_HOST}(?::\d+)?)/|ssh://{_USER}{_HOST})(?::\d+)?/|(?:[\w.-]+@)?{_HOST}):/?)"
    r"([\w~-][\w.~-]*(?:/[\w~-][\w.~-]*?)+)(?:\.git)?/?",
    re.ASCII | re.IGNORECASE,
)
# No hooks; and what is written to an index is written there alone, and is all that there is.
SET_SO = [
    "core.hooksPath=/dev/null", "core.splitIndex=false", "core.safecrlf=false",
    "add.ignoreErrors=false",
]  # fmt: skip


def git(folder: Path, *words: str, **variables: str) -> str:
    """Return what git says, without the hooks of the repository; raises UsageError.

    It is asked in an environment with these ``variables``.
    """
    kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_NAMES}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *(w for each in SET_SO for w in ("-c", each)), *words],
            capture_output=True,
            text=True,
            errors="surrogateescape",  # names of files, as Python has them
            check=False,
            timeout=GIT_LIMIT_S,
            # It does not even refresh the user's index.
            env={**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **variables},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run: {error}", where=str(folder)) from error
    if done.returncode:
        said = plain(done.stderr).strip().removeprefix("fatal: ")
        told = f"git {words[0]}: {said or f'ended with {done.returncode}'}"
        raise UsageError(told, where=str(folder))
    return done.stdout.removesuffix("\n")


def _asked(folder: Path, *words: str) -> str:
    """Return what git says; nothing where it has nothing to say of this folder."""
    try:
        return git(folder, *words)
    except UsageError:
        return ""


def remote_of(*folders: Path) -> str:
    """Return the web address of the one repository that all folders come from; else nothing."""
    found = {_asked(each, "remote", "get-url", "origin") for each in folders}
    known = _REMOTE.fullmatch(found.pop()) if len(found) == 1 else None
    return f"https://{known[1] or known[2] or known[3]}/{known[4]}" if known else ""


def commit_of(project: Path) -> tuple[str, str]:
    """Return the commit of a project, ``-dirty`` appended, and why git does not tell it.

    Outside git both are empty.
    """
    try:
        # Never a tag's name, which another commit may have tomorrow; and all digits that there are.
        words = ("--always", "--dirty", "--abbrev=64", "--exclude=*")
        return git(project, "describe", *words), ""
    except UsageError as error:
        first = error.what.partition("\n")[0]
        return "", "" if "not a git repository" in first else f"the run has no commit: {first}"


def code_digest(project: Path, packs: Sequence[Pack]) -> str:
    """Return a digest of the code of a project's repository, committed or not, and of its packs.

    Data inside packages counts as code. Outside of git only the packs count. A commit of what was
    measured does not change it.
    """
    # By names that a moved checkout has, too.
    places: dict[Path, str] = {}
    if top := _asked(project, "rev-parse", "--show-toplevel"):
        listed = _asked(Path(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        places = {Path(top, name): name for name in listed.split("\0")}
    for pack in (each for each in packs if each.place):
        home = Path(pack.place)
        for file in home.rglob("*") if home.is_dir() else [home]:
            # No file of the repository has a name that begins so.
            places.setdefault(file, f"/{pack.name}/{file.relative_to(home)}")
    packages = {file.parent for file in places if file.name == "__init__.py"}

    def is_code(file: Path, name: str) -> bool:
        is_data = file.suffix in DATA and not packages.isdisjoint(file.parents)
        return file.suffix in CODE or (is_data and baselines.FOLDER not in name.split("/"))

    digests = [
        f"{name}\0".encode(errors="surrogateescape") + hashlib.sha256(file.read_bytes()).digest()
        for file, name in sorted(places.items(), key=itemgetter(1))
        if is_code(file, name) and file.is_file()
    ]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:DIGITS] if digests else ""


def touched_since(
    root: Path, packs: Sequence[Pack], variants: Sequence[Variant], commits: Mapping[str, str]
) -> frozenset[str]:
    """Return the variants whose pack's code git knows another of since the commit named by id.

    A file named after a case is that case's, any other is of all of its pack.
    """
    top = _asked(root, "rev-parse", "--show-toplevel")
    folders = {pack.name: Path(pack.place).resolve() for pack in packs if pack.place}
    cases = {(variant.pack, variant.case.name) for variant in variants}

    @cache
    def touched(pack: str, commit: str) -> set[str]:
        """Return the names of the pack's cases that changed since the commit."""
        names = _asked(Path(top), "diff", "--name-only", "-z", commit.removesuffix("-dirty"))
        files = [Path(top, name).resolve() for name in names.split("\0") if name]
        own = {case for home, case in cases if home == pack}
        found = set()
        for file in files:
            is_tested = "tests" in file.parts or file.suffix not in CODE
            if pack in folders and file.is_relative_to(folders[pack]) and not is_tested:
                stem = file.stem
                found |= {c for c in own if stem == c or stem.startswith(f"{c}_")} or own
        return found

    return frozenset(
        each.id
        for each in variants
        if top and each.id in commits and each.case.name in touched(each.pack, commits[each.id])
    )


def knows(repository: Path, place: Path) -> bool:
    """Say whether something is code of a repository, committed or not yet: not what git ignores."""
    names = ("ls-files", "--cached", "--others", "--exclude-standard", "--", str(place.resolve()))
    return bool(_asked(repository, *names))


def source_in(repository: Path, apart: Sequence[Path]) -> Source:
    """Return the commit that a repository's files are of; of changed ones a commit of ours.

    What lies in folders ``apart``, such as those that runs write to, counts for nothing. Raises
    UsageError where files are changed that cannot be kept. No ref holds the commit yet.
    """
    head = _asked(repository, "rev-parse", "--verify", "--quiet", "HEAD")
    inside = (each.relative_to(repository) for each in apart if repository in each.parents)
    code = ("--", ".", *(f":(exclude,literal){each}" for each in inside))
    listed = git(repository, "ls-files", "-z", "--others", "--exclude-standard", *code)
    # A folder is another repository.
    names = [name for name in listed.split("\0") if name and not name.endswith("/")]
    unknown = [repository / name for name in names]
    # Of what git does not know only code makes a tree another one: a run may leave any file.
    is_changed = not head or any(file.suffix.lower() in CODE for file in unknown)
    if not is_changed and not git(repository, "diff", "--name-only", SUBMODULES, "HEAD", *code):
        return Source(commit=head)
    size = sum(file.lstat().st_size for file in unknown if file.is_file())
    if size > MOST_UNKNOWN_BYTES:
        told = f"{size >> 20} MiB are in files that git does not know"
        raise UsageError(told, where=str(repository), remedy="let git ignore them: .gitignore")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "index")
        # With what git knows of files that it need not read, and when it knew it: what changed in
        # the same moment is read.
        with suppress(FileNotFoundError):
            shutil.copy2(repository / git(repository, "rev-parse", "--git-path", "index"), index)
        own = {"GIT_INDEX_FILE": str(index), **OURS}
        git(repository, "add", "--update", *code, **own)
        new = Path(folder, "new")
        new.write_bytes(os.fsencode("\0".join(names)))
        from_file = (f"--pathspec-from-file={new}", "--pathspec-file-nul")
        git(repository, "add", *from_file, **own, GIT_LITERAL_PATHSPECS="1")
        # No tree of ours has what lies in a submodule.
        if left := git(repository, "diff", "--name-only", SUBMODULES, *code, **own):
            told = f"what is changed lies in a submodule: {left.splitlines()[0]}"
            raise UsageError(told, where=str(repository), remedy="commit it there")
        tree = git(repository, "write-tree", **own)
        parent = ("-p", head) if head else ()
        commit = git(repository, "commit-tree", tree, *parent, "-m", "Measured", **own)
    return Source(commit=commit, is_changed=True)


# What declares a pack, and where.
PACK, FILE = "[project.entry-points.perfsuite]", "pyproject.toml"


def own_trees(
    repository: Path, commit: str, files: Mapping[str, Path], apart: Sequence[Path]
) -> dict[str, str]:
    """Return by pack what tells its code from another: the files of a commit that it may use.

    ``files`` are the packs' own. A pack in a folder with a pyproject.toml does not use other such
    folders of packs, whether or not a run has them, but those whose modules it names anywhere, and
    those that these name. No pack uses what is no code in folders ``apart``, nor documents, tests
    and what is hidden, unless it lies there itself; nor perfsuite, with which all is measured.
    """
    listed = git(repository, "ls-tree", "-rz", commit).split("\0")
    names = [each.partition("\t")[2] for each in listed]
    ours, written = (
        [f"{each.relative_to(repository)}/" for each in some if repository in each.parents]
        for some in ([boundary.OURS], apart)
    )
    packs = _asked(repository, "grep", "-lF", PACK, commit, "--", f"*/{FILE}").splitlines()
    folders = {each.partition(":")[2].removesuffix(FILE) for each in packs}
    # A pack may use another's code by way of a folder that has none.
    nodes = folders | {each.removesuffix(FILE) for each in names if each.endswith(f"/{FILE}")}
    modules, named, trees = dict[str, set[str]](), dict[str, set[str]](), {}
    for folder in nodes:
        module = re.compile(rf"{re.escape(folder)}(?:src/)?(\w+)(?:/.*)?\.py")
        modules[folder] = {found[1] for found in map(module.fullmatch, names) if found} - NO_MODULES
    words = "|".join(set().union(*modules.values()))
    for folder in nodes:
        named[folder] = {*_asked(repository, "grep", "-haowE", words, commit, "--", folder).split()}
    away = (f":(exclude){each}" for each in (*ours, *written))
    outside = (*(f":(exclude,glob)**/{each}/**" for each in ("docs", "tests")), *away)
    has_helpers = bool(_asked(repository, "grep", "-lE", NAMED, commit, "--", "*.py", *outside))
    for pack, file in files.items():
        own = str(file.relative_to(repository))
        near = {each for each in nodes if own.startswith(each)}
        # Each one's own pyproject.toml names it, or git has not said what is named.
        is_told = any(named[each] & modules[each] for each in near)
        while more := {o for o in nodes for n in near if modules[o] & named[n]} - near:
            near |= more
        others = [o for o in folders if is_told and not any(kept.startswith(o) for kept in near)]
        others += [each for each in ours if not own.startswith(each)]
        data = tuple(each for each in written if not own.startswith(each))
        is_of_use = partial(_is_of_use, own=own, data=data, tests=has_helpers or not is_told)
        kept = [
            each
            for each, name in zip(listed, names, strict=True)
            if not name.startswith((*others,)) and is_of_use(name)
        ]
        trees[pack] = hashlib.sha256("\0".join(kept).encode(errors="surrogateescape")).hexdigest()
    return trees


def _is_of_use(name: str, *, own: str, data: tuple[str, ...], tests: bool) -> bool:
    """Say whether a pack, whose ``own`` file is named, may use a file of its repository."""
    suffix, folder = os.path.splitext(name)[1], APART.match(name)  # noqa: PTH122 - of many files
    if folder and not own.startswith(folder[0]):
        return tests and suffix in CODE and not TEST.fullmatch(name)
    if name.startswith(data):
        return suffix in CODE
    return suffix not in {".md", ".rst"}


def hold(repository: Path, run: str, commit: str) -> None:
    """Keep a commit of ours for a run; of older runs' the newest stay."""
    git(repository, "update-ref", f"{REFS}/{run}", commit)
    names = git(repository, "for-each-ref", "--format=%(refname:lstrip=2)", REFS).split()
    for name in sorted(names, reverse=True)[MOST_REFS:]:
        git(repository, "update-ref", "-d", f"{REFS}/{name}")


def is_shallow(repository: Path) -> bool:
    """Say whether a clone lacks old commits."""
    return _asked(repository, "rev-parse", "--is-shallow-repository") == "true"


def repository_of(project: Path) -> Path:
    """Return the top folder of the repository around a folder; raises UsageError."""
    try:
        return Path(git(project, "rev-parse", "--show-toplevel")).resolve()
    except UsageError as error:
        raise UsageError(
            f"there is no git repository to take another revision of: {error.what}",
            where=f"{OPTION}, {project}",
            remedy="run it inside the repository under test, or name it with -o perf_repo=PATH",
        ) from error


def revision_of(repository: Path, rev: str) -> Revision:
    """Return the commit that a revision names; raises UsageError."""
    is_plain = rev.isprintable() and " " not in rev and not rev.startswith("-")
    # What no name can be is not even asked for.
    spec = f"{rev}^{{commit}}" if is_plain else "^{commit}"
    try:
        commit = git(repository, "rev-parse", "--verify", "--end-of-options", spec)
    except UsageError as error:
        remedy = "name a commit, a branch or a tag; a shallow clone lacks older ones"
        remedy += " (git fetch --unshallow)"
        told = f"{OPTION} does not know {rev!r}"
        raise UsageError(told, where=str(repository), remedy=remedy) from error
    return Revision(commit, rev)


def folder_at(folder: Path, rev: str, place: Path) -> Path:
    """Write a folder as a revision of its repository has it to ``place``; empty if it has none."""
    folder = folder.resolve()  # a link may lead to another repository
    try:
        top = repository_of(folder.parent)
        commit = revision_of(top, rev).commit
    except UsageError as error:
        raise UsageError(
            f"{rev!r} is neither a folder nor a revision",
            where=str(folder.parent),
            remedy="name a folder of baselines, a commit, a branch or a tag",
        ) from error
    name = folder.relative_to(top).as_posix()
    if git(top, "ls-tree", commit, "--", name):
        own = {"GIT_INDEX_FILE": str(place / "index")}
        git(top, "read-tree", f"{commit}:{name}", **own)
        # A link becomes a file that says where it leads.
        to = ("core.symlinks=false", "checkout-index", "--all", f"--prefix={place}/")
        git(top, "-c", *to, **own)
    return place


def check_out(
    repository: Path, revision: Revision, *, folder: Path, build: str, stack: ExitStack
) -> Path:
    """Return a clean and built checkout, which no other run removes before ``stack`` ends.

    It lies in ``folder``/against and is used again while it is unchanged. Locks are held by
    processes, not by files: what is interrupted leaves none, and half a checkout is made anew.
    """
    home = folder / FOLDER
    place, stamp = home / revision.commit, home / f"{revision.commit}.built"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        is_built = stamp.is_file() and stamp.read_text(encoding="utf-8") == build
        head = _asked(place, "rev-parse", "HEAD") if (place / ".git").is_file() else ""
        changes = ("status", "--porcelain", "--untracked-files=no")
        if not is_built or head != revision.commit or _asked(place, *changes):
            _remove(repository, place)
            to = (str(place), revision.commit)
            git(repository, "worktree", "add", "--force", "--force", "--detach", *to)
            if build:
                _build(place, build)
            stamp.write_text(build, encoding="utf-8")
        os.utime(stamp)
        stack.enter_context(locked(place, fcntl.LOCK_SH))
        stamps = sorted(home.glob("*.built"), key=lambda each: each.stat().st_mtime)
        for old in stamps[:-KEPT]:
            with suppress(UsageError):  # another run uses it
                _remove(repository, old.with_suffix(""))
    return place


def _remove(repository: Path, place: Path) -> None:
    """Remove a checkout; raises UsageError if a run uses it."""
    stamp = place.with_name(f"{place.name}.built")
    if not place.exists():
        stamp.unlink(missing_ok=True)
        return
    try:
        with locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB):
            stamp.unlink(missing_ok=True)
            try:
                git(repository, "worktree", "remove", "--force", "--force", str(place))
            except UsageError:  # half made: git does not know it
                shutil.rmtree(place)
    except BlockingIOError as error:
        raise UsageError(
            "the revision's checkout is in use and not as this run needs it",
            where=str(place),
            remedy="wait until the other run ends",
        ) from error


def _build(place: Path, command: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-TAIL_CHARACTERS:]
        raise UsageError(
            f"{OPTION}-build {command!r} ended with {done.returncode}:\n{said}",
            where=str(place),
            remedy="correct the command; it runs in a fresh checkout of the revision",
        )
