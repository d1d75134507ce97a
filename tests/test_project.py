"""What the linters are told of the packs is what there is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKS = sorted(ROOT.glob("plugins/*/pyproject.toml"))


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_import_contracts_know_every_pack() -> None:
    packs = {path.parent.name for path in ROOT.glob("plugins/*/perfsuite_*/__init__.py")}
    linted = read(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    assert set(linted) == {"perfsuite", *packs}


def test_every_pack_is_an_extra_and_has_one_entry_point() -> None:
    extra = read(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["packs"]
    found = {path.parent.name: read(path)["project"] for path in PACKS}
    bad = [
        folder
        for folder, pack in found.items()
        if pack["name"] not in extra
        or pack["name"] != f"perfsuite-{folder}"
        or len(pack["entry-points"]["perfsuite"]) != 1
    ]
    assert not bad
