"""New packs: what is written is sound, and nothing is written that is not whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perfsuite.boundary import UsageError
from perfsuite.cli import new_pack
from perfsuite.model import Tier
from perfsuite.packs.find import packs_at
from perfsuite.testing import check_pack
from perfsuite.workers.catalogue import load_catalogue

ROOT = Path(__file__).parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_pack_is_listed_without_torch_and_sound_on_a_cpu(here: Path) -> None:
    place = new_pack("acme")
    assert place == Path("acme-perf")
    (pack,) = load_catalogue(packs_at(place), tier=Tier.NIGHTLY, heavy=("torch", "triton"))
    assert (pack.error, pack.name) == ("", "acme")
    assert "acme.softmax[rows=4096,cols=8192,impl=triton]" in {v.id for v in pack.variants}
    assert [claim.id for claim in pack.claims] == ["acme.softmax:fused_triton[rows=4096,cols=8192]"]
    assert check_pack(place, device="cpu") == (
        "acme.softmax[rows=1024,cols=1000,impl=eager]",
        "acme.softmax[rows=1024,cols=1000,impl=torch]",
    )


def test_a_new_pack_passes_its_own_tests_and_linters(here: Path) -> None:
    place = new_pack("acme").absolute()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}
    for command in (
        ("pytest", "-q", "-p", "no:cacheprovider"),
        ("ruff", "check", "--no-cache"),
        ("ruff", "format", "--check", "--no-cache"),
        ("mypy", "--cache-dir", str(here / "mypy")),
    ):
        words = [sys.executable, "-m", *command]
        done = subprocess.run(
            words, cwd=place, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_file_has_the_pack_s_own_names(here: Path) -> None:
    place = new_pack("acme_gemm", Path("deep/down"))
    assert place == Path("deep/down")
    files = [path for path in place.rglob("*") if path.is_file()]
    assert {"perf.yml", "README.md", "softmax_triton.py"} <= {path.name for path in files}
    project = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "acme-gemm-perf"
    assert project["entry-points"] == {"perfsuite": {"acme_gemm": "acme_gemm_perf"}}
    assert not [path for path in files if "$" in path.read_text("utf-8")]


@pytest.mark.parametrize(
    "name", ["", "Acme", "9lives", "acme-gemm", "a b", "../acme", "a__b", "_a", "sku", "a" * 41]
)
def test_a_bad_name_is_refused(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a pack's name"):
        new_pack(name)
    assert list(here.iterdir()) == []


def test_half_a_pack_is_never_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = Path.write_text

    def full_disk(path: Path, text: str, encoding: str) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(UsageError, match="No space left"):
        new_pack("acme")
    assert list(here.iterdir()) == []
