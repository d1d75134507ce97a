"""Which code it is: a digest of what may run in a project's workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from perfsuite.errors import UsageError
from perfsuite.model import Pack, Variant
from perfsuite.repository import git

# Neither what is written while a run goes on (reports, logs) nor what is built of sources is code.
CODE = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".pyx"})
DIGITS = 12


def code_digest(project: Path, packs: Sequence[Pack]) -> str:
    """Return a digest of the code of a project's repository, committed or not, and of its packs.

    Outside of git only the packs count. A commit of what was measured does not change it.
    """
    places = _of_repository(project)
    known = set(places.values())
    for pack in packs:
        places |= {name: file for name, file in _of_pack(pack) if file not in known}
    digest = hashlib.sha256()
    for name, file in sorted(places.items()):
        if file.is_file():
            digest.update(f"{name}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS] if places else ""


def touched_since(
    root: Path, packs: Sequence[Pack], variants: Sequence[Variant], commits: Mapping[str, str]
) -> frozenset[str]:
    """Return the variants whose pack's code git knows another of since the commit named by id.

    A file named after a case is that case's, any other is of all of its pack.
    """
    top = _asked(root, "rev-parse", "--show-toplevel")
    folders = {pack.name: _place(pack) for pack in packs}
    stems: dict[tuple[str, str], set[str]] = {}
    for commit in set(commits.values()) if top else ():
        names = _asked(Path(top), "diff", "--name-only", "-z", commit.removesuffix("-dirty"))
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


def _of_repository(project: Path) -> dict[str, Path]:
    """Return the code of a project's repository, by names that a moved checkout has, too."""
    top = _asked(project, "rev-parse", "--show-toplevel")
    if not top:
        return {}
    listed = _asked(Path(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    files = _code(Path(top, name) for name in listed.split("\0") if name)
    return {file.relative_to(top).as_posix(): file for file in files}


def _place(pack: Pack) -> Path:
    kind, _, value = pack.origin.partition(":")
    return Path(value if kind == "file" else value.partition("@")[2] or value).resolve()


def _of_pack(pack: Pack) -> Iterator[tuple[str, Path]]:
    kind, _, value = pack.origin.partition(":")
    if kind == "file":
        files, home = [Path(value)], Path(value).parent
    else:
        home = Path(value.partition("@")[2])
        files = [*_code(home.rglob("*"))] if value.partition("@")[2] else []
    # No file of the repository has a name that begins so.
    yield from ((f"/{pack.name}/{file.relative_to(home)}", file) for file in files)


def _code(files: Iterable[Path]) -> Iterator[Path]:
    return (file for file in files if file.suffix in CODE)


def _asked(folder: Path, *words: str) -> str:
    """Return what git says; nothing where it has nothing to say of this folder."""
    try:
        return git(folder, *words)
    except UsageError:
        return ""
