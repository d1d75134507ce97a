"""Which product a device is, and a digest of the files that decide what a pack does."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.model import DeviceFacts, Pack, Sku, Variant, built_in
from perfsuite.store.git import git

GIB = 1 << 30
# A product's memory as reported varies by driver and ECC; what a step tells apart does not.
SMALL_STEP_GIB, STEP_GIB, SMALL_GIB = 4, 16, 32
# What turns a kernel into machine code: other versions are other products.
COMPILERS = ("triton", "nvidia-cuda-nvrtc")
# Revisions of a board may carry other memory: two of one product differ by up to 2 % either way in
# a fifth of the memory and compute packs, while cards of one revision agree (H200). The last two
# groups of a part number tell a product's boards apart: 692-2G520-0282-001.
_BOARD = re.compile(r"\d{3}-\w{5}-(\d{4}-\d{3})\Z")
# Facts that are sizes, not names: they enter the fingerprint as a class.
_MEMORY = "memory"


def slugify(name: str) -> str:
    """Return a product name as a folder name: lower case, words joined by hyphens."""
    marked = re.sub(r"\((R|TM|C)\)|®|™", " ", name, flags=re.IGNORECASE)
    plain = unicodedata.normalize("NFKD", marked).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")


def sku_of(facts: DeviceFacts, *, gpus: int = 1) -> Sku:
    """Return the SKU that baselines of this device are keyed by.

    ``gpus`` is how many GPUs one variant uses, not how many the node has (``facts.gpus``).
    """
    if facts.is_host:
        return cpu_sku(facts)
    slug = built_in(facts.device).slug or slugify(facts.name)
    if not slug:
        raise DeviceError(f"device {facts.device!r} has no usable product name: {facts.name!r}")
    slug += board_suffix(Sku(slug=slug, name=facts.name, facts=facts.identity))
    profile = facts.identity.get("mig", "")
    if profile not in {"", "none", "off", "disabled"}:
        slug += f"-mig-{slugify(profile)}"
    if gpus > 1:
        slug += f"-x{gpus}"
    found = {key: value for key, value in facts.identity.items() if not key.startswith(_MEMORY)}
    if facts.memory_bytes:
        size = facts.memory_bytes / GIB
        step = STEP_GIB if size >= SMALL_GIB else SMALL_STEP_GIB
        middle = max(1, round(size / step)) * step
        found[_MEMORY] = f"{middle - step // 2}-{middle + step // 2} GiB"
    return Sku(slug=slug, name=facts.name, facts=found)


def board_suffix(sku: Sku) -> str:
    """Return what a slug says of the board, with its hyphen; nothing where none is known."""
    board = sku.facts.get("board", "")
    match = _BOARD.match(board)
    return f"-{match[1] if match else slugify(board)}" if board else ""


def sku_for(variant: Variant, facts: DeviceFacts, *, own: Sku) -> Sku:
    """Return the SKU that a variant's baseline is keyed by, on a device whose own is ``own``.

    A gang's has its number of GPUs, a compilation target's the target and the compilers alone.
    """
    if variant.target:
        compilers = {key: facts.environment[key] for key in COMPILERS if key in facts.environment}
        slug = slugify(variant.target.replace("_", "-")).replace("-", "_")
        return Sku(slug=slug, name=variant.target, facts={"target": variant.target, **compilers})
    is_shared = built_in(facts.device).is_nvidia and variant.ranks > 1
    return sku_of(facts, gpus=variant.ranks) if is_shared else own


def cpu_sku(facts: DeviceFacts) -> Sku:
    """Return the SKU of a CPU: model and core count; its memory is not part of it."""
    cores = facts.identity.get("cores", "")
    model = re.sub(r"\bcpu\b|\bprocessor\b|@.*", " ", facts.name, flags=re.IGNORECASE)
    slug = "-".join(part for part in ("cpu", slugify(model), f"{cores}c" if cores else "") if part)
    return Sku(slug=slug, name=facts.name, facts=dict(facts.identity))


def blocked_by(entry_state: Mapping[str, str], facts: DeviceFacts) -> str:
    """Say which state (enforced power limit, ECC, MIG) differs, or "" if none does.

    A state that one side does not know blocks nothing.
    """
    return _differences(entry_state, facts.state)


def fingerprint_differs(sku: Sku, stored_facts: Mapping[str, str]) -> str:
    """Say how the device differs from the one whose baselines have the same slug, or ""."""
    return _differences(stored_facts, sku.facts)


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} was {before[key]} and is {now[key]}"
        for key in sorted(before.keys() & now.keys())
        if before[key] != now[key]
    )


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
