"""Which code it is: the commit, and a digest of what may run in a project's workers."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from perfsuite.model import Pack, Variant

# Neither what is written while a run goes on (reports, logs) nor what is built of sources is code.
CODE = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".pyx"})
GIT_LIMIT_S = 30.0
DIGITS = 12


def git_commit(root: Path) -> str:
    """Return the commit of the project under test, ``-dirty`` appended, or nothing outside git."""
    # Never a tag's name, which another commit may have tomorrow.
    return _git(root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()


def code_digest(project: Path, packs: Sequence[Pack]) -> str:
    """Return a digest of the code of a project's repository, committed or not, and of its packs.

    Outside of git only the packs count. A commit of what was measured does not change it.
    """
    digest = hashlib.sha256()
    places = {*_of_repository(project), *(file for pack in packs for file in _of_pack(pack))}
    for file in sorted(places):
        if file.is_file():
            digest.update(f"{file}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS] if places else ""


def touched_since(
    root: Path, packs: Sequence[Pack], variants: Sequence[Variant], commits: Mapping[str, str]
) -> frozenset[str]:
    """Return the variants whose pack's code git knows another of since the commit named by id.

    A file named after a case is that case's, any other is of all of its pack.
    """
    top = _git(root, "rev-parse", "--show-toplevel").strip()
    folders = {pack.name: _place(pack) for pack in packs}
    stems: dict[tuple[str, str], set[str]] = {}
    for commit in set(commits.values()) if top else ():
        names = _git(Path(top), "diff", "--name-only", "-z", commit.removesuffix("-dirty"))
        files = [*_code(Path(top, name).resolve() for name in names.split("\0"))]
        for pack, folder in folders.items():
            own = [file for file in files if file.is_relative_to(folder)]
            stems[pack, commit] = {file.stem for file in own if "tests" not in file.parts}
    cases = {(variant.pack, variant.case.name) for variant in variants}
    return frozenset(
        v.id for v in variants if _touches(stems.get((v.pack, commits.get(v.id, ""))), v, cases)
    )


def _touches(stems: set[str] | None, variant: Variant, cases: AbstractSet[tuple[str, str]]) -> bool:
    def owners(stem: str) -> set[str]:
        return {
            name
            for pack, name in cases
            if pack == variant.pack and (stem == name or stem.startswith(f"{name}_"))
        }

    return any(variant.case.name in (owners(stem) or {variant.case.name}) for stem in stems or ())


def _of_repository(project: Path) -> Iterator[Path]:
    top = _git(project, "rev-parse", "--show-toplevel").strip()
    if not top:
        return
    listed = _git(Path(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    yield from _code(Path(top, name) for name in listed.split("\0") if name)


def _place(pack: Pack) -> Path:
    kind, _, value = pack.origin.partition(":")
    return Path(value if kind == "file" else value.partition("@")[2] or value).resolve()


def _of_pack(pack: Pack) -> Iterator[Path]:
    kind, _, value = pack.origin.partition(":")
    if kind == "file":
        yield Path(value)
    elif folder := value.partition("@")[2]:
        yield from _code(Path(folder).rglob("*"))


def _code(files: Iterable[Path]) -> Iterator[Path]:
    return (file for file in files if file.suffix in CODE)


def _git(folder: Path, *words: str) -> str:
    """Return what git says; nothing where it has nothing to say of this folder."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=GIT_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
