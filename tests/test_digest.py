"""The digest tells edits of code from all else that happens in a project's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfsuite.model import Pack
from perfsuite.store.git import git_commit, unknown_commit
from perfsuite.store.sku import code_digest


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


def test_a_moved_checkout_has_the_same_code(project: Path, tmp_path_factory: Any) -> None:
    packs = (Pack(name="src", origin=f"file:{project}/build/src.py"),)
    (project / "build").mkdir()
    (project / "build" / "src.py").write_text("ignored by git, and a pack")
    before = code_digest(project, packs)
    moved = project.rename(tmp_path_factory.mktemp("elsewhere") / "checkout")
    packs = (Pack(name="src", origin=f"file:{moved}/build/src.py"),)
    assert code_digest(moved, packs) == before
    (moved / "build" / "src.py").write_text("edited")
    assert code_digest(moved, packs) != before


def test_the_folder_decides_which_repository_is_meant(
    project: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, code = git_commit(project), code_digest(project, ())
    other = tmp_path_factory.mktemp("other")
    git(other, "init")
    git(other, "commit", "--allow-empty", "-m", "z")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert (git_commit(project), code_digest(project, ())) == (commit, code)


def test_git_that_refuses_a_repository_is_told_of(
    project: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unknown_commit(project) == ""
    assert unknown_commit(tmp_path_factory.mktemp("outside")) == ""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_commit(project) == ""
    assert "the run has no commit: git describe: detected dubious" in unknown_commit(project)


def test_outside_of_git_and_without_packs_there_is_none(tmp_path: Path) -> None:
    assert code_digest(tmp_path, ()) == ""
