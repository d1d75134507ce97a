"""The digest tells edits of code from all else that happens in a project's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfsuite.digest import code_digest
from perfsuite.model import Pack


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "kernel.cu").write_text("one")
    (tmp_path / ".gitignore").write_text("build")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    return tmp_path


@pytest.mark.parametrize("name", ["src/kernel.cu", "src/new.py", "top.py"])
def test_an_edit_of_code_changes_it_committed_or_not(project: Path, name: str) -> None:
    before = code_digest(project, ())
    (project / name).write_text("two")
    edited = code_digest(project / "src", ())
    assert edited != before
    git(project, "add", ".")
    git(project, "commit", "-m", "y")
    assert code_digest(project, ()) == edited


@pytest.mark.parametrize("name", ["README.md", "build/x.py", ".perfsuite/run.jsonl", "log.txt"])
def test_what_is_no_code_or_is_ignored_changes_nothing(project: Path, name: str) -> None:
    before = code_digest(project, ())
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("new")
    assert code_digest(project, ()) == before


def test_packs_count_wherever_they_lie(tmp_path: Path) -> None:
    file, folder = tmp_path / "acme.py", tmp_path / "other"
    folder.mkdir()
    (folder / "perf_other.py").write_text("one")
    file.write_text("one")
    packs = (
        Pack(name="acme", origin=f"file:{file}"),
        Pack(name="other", origin=f"module:perf_other@{folder}"),
        Pack(name="installed", origin="module:perf_installed@"),
    )
    found = {code_digest(tmp_path, packs)}
    file.write_text("two")
    found.add(code_digest(tmp_path, packs))
    (folder / "perf_other.py").write_text("two")
    found.add(code_digest(tmp_path, packs))
    assert len(found) == 3


def test_outside_of_git_and_without_packs_there_is_none(tmp_path: Path) -> None:
    assert code_digest(tmp_path, ()) == ""
