"""Asks git about a folder: the folder decides which repository is meant, not the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from perfsuite.boundary import REPOSITORY_NAMES, plain
from perfsuite.errors import UsageError

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
