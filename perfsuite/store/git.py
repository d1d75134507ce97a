"""Asks git: the commit of a checkout, and the tree of another one.

The folder decides which repository is meant, not the environment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from perfsuite.boundary import REPOSITORY_NAMES, UsageError, plain
from perfsuite.model import Revision
from perfsuite.store.files import locked

# A checkout of a large repository may take that long.
GIT_LIMIT_S = 300.0
# What git says of a folder that simply is in none.
_NO_REPOSITORY = "not a git repository"


def git(folder: Path, *words: str) -> str:
    """Return what git says, without the hooks of the repository; raises UsageError."""
    kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_NAMES}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words],
            capture_output=True,
            text=True,
            errors="surrogateescape",  # names of files, as Python has them
            check=False,
            timeout=GIT_LIMIT_S,
            env={**kept, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run: {error}", where=str(folder)) from error
    if done.returncode:
        said = plain(done.stderr).strip().removeprefix("fatal: ")
        said = said or f"ended with {done.returncode}"
        raise UsageError(f"git {words[0]}: {said}", where=str(folder))
    return done.stdout.removesuffix("\n")


def git_commit(root: Path) -> str:
    """Return the commit of the project under test, ``-dirty`` appended, or nothing outside git."""
    try:
        return _described(root)
    except UsageError:
        return ""


def unknown_commit(root: Path) -> str:
    """Say why git does not tell the commit of a project that is in a repository."""
    try:
        _described(root)
    except UsageError as error:
        first = error.what.partition("\n")[0]
        return "" if _NO_REPOSITORY in first else f"the run has no commit: {first}"
    return ""


def _described(root: Path) -> str:
    # Never a tag's name, which another commit may have tomorrow.
    return git(root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


FOLDER = "against"
# Checkouts that are kept, the last used ones: a build may have taken long.
KEPT = 3
TAIL_CHARACTERS = 2000
OPTION = "--perf-against"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionOptions:
    """What to compare with: a revision of the repository around ``project``, and how it is built.

    ``build`` is a shell command, run in the checkout.
    """

    rev: str
    project: Path
    build: str = ""


def repository_of(project: Path) -> Path:
    """Return the top folder of the repository around a folder; raises UsageError."""
    try:
        return Path(git(project, "rev-parse", "--show-toplevel")).resolve()
    except UsageError as error:
        raise UsageError(
            f"there is no git repository to take another revision of: {error.what}",
            where=f"{OPTION}, {project}",
            remedy="run it inside the repository under test, or name it with --perf-repo=PATH",
        ) from error


def revision_of(repository: Path, rev: str) -> Revision:
    """Return the commit that a revision names; raises UsageError."""
    is_plain = rev.isprintable() and " " not in rev and not rev.startswith("-")
    # What no name can be is not even asked for.
    spec = f"{rev}^{{commit}}" if is_plain else "^{commit}"
    try:
        commit = git(repository, "rev-parse", "--verify", "--end-of-options", spec)
    except UsageError as error:
        raise UsageError(
            f"{OPTION} does not know {rev!r}",
            where=str(repository),
            remedy="name a commit, a branch or a tag; a shallow clone lacks older commits "
            "(git fetch --unshallow)",
        ) from error
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
        packed = place / "folder.tar"
        git(top, "archive", "--format=tar", f"--output={packed}", f"{commit}:{name}")
        try:
            with tarfile.open(packed) as tar:
                tar.extractall(place, filter="data")
        except (tarfile.TarError, OSError) as error:  # a link that leads out of the folder
            raise UsageError(
                f"{rev!r} cannot be unpacked: {error}",
                where=str(folder),
                remedy="look at it with git ls-tree -r; baselines are files alone",
            ) from error
        packed.unlink()
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
    with locked(home, fcntl.LOCK_EX):
        is_built = stamp.is_file() and stamp.read_text(encoding="utf-8") == build
        if not (is_built and _is_clean(place, revision)):
            _remove(repository, place)
            to = (str(place), revision.commit)
            git(repository, "worktree", "add", "--force", "--force", "--detach", *to)
            _build(place, build)
            stamp.write_text(build, encoding="utf-8")
        os.utime(stamp)
        stack.enter_context(locked(place, fcntl.LOCK_SH))
        _prune(repository, home)
    return place


def _is_clean(place: Path, revision: Revision) -> bool:
    """Say whether a checkout is that of the commit, its tracked files unchanged."""
    if not (place / ".git").is_file():
        return False
    try:
        head = git(place, "rev-parse", "HEAD")
        changes = git(place, "status", "--porcelain", "--untracked-files=no")
    except UsageError:
        return False
    return head == revision.commit and not changes


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
    if not command:
        return
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


def _prune(repository: Path, home: Path) -> None:
    """Remove all but the checkouts used last, if nobody uses them."""
    stamps = sorted(home.glob("*.built"), key=lambda stamp: stamp.stat().st_mtime, reverse=True)
    for stamp in stamps[KEPT:]:
        with suppress(UsageError):
            _remove(repository, stamp.with_suffix(""))
