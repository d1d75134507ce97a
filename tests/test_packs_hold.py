"""Every pack of the repository is sound: what check_pack asks without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfsuite.boundary import PackError
from perfsuite.testing import check_pack

ROOT = Path(__file__).parents[1]
PACKS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


def test_all_packs_are_here() -> None:
    assert len(PACKS) == 8


@pytest.mark.parametrize("pack", PACKS, ids=lambda path: path.name)
def test_pack_is_sound(pack: Path) -> None:
    if pack.name == "codegen":  # it compiles what others hand over, and check_pack loads one pack
        with pytest.raises(PackError, match="no pack hands over a kernel"):
            check_pack(pack, device="")
    else:
        assert check_pack(pack, device="") == ()


def test_example_pack_is_right_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests import packs of that name from elsewhere.
    for module in [name for name in sys.modules if name.partition(".")[0] == "acme_perf"]:
        monkeypatch.delitem(sys.modules, module)
    assert check_pack(ROOT / "examples" / "acme-perf", device="acme")
