"""Revisions of a repository: what names one, and where they are checked out."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from against_data import BEFORE, ROOT, commit, git, repository_at

import perfsuite
from perfsuite.boundary import UsageError
from perfsuite.model import Tree
from perfsuite.store.git import KEPT, check_out, folder_at, repository_of, revision_of
from perfsuite.workers.server import Mover


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return repository_at(tmp_path / "repository")


@pytest.mark.parametrize(
    "rev", ["nowhere", "--upload-pack=touch x", "-h", "main main", "", "main\n", "HEAD:speed.py"]
)
def test_what_names_no_commit_is_refused(repository: Path, rev: str) -> None:
    with pytest.raises(UsageError, match="--perf-against does not know") as caught:
        revision_of(repository, rev)
    assert repr(rev) in caught.value.what


def checked_out(repository: Path, rev: str = "main", build: str = "") -> Path:
    revision = revision_of(repository, rev)
    folder = repository / ".perfsuite"
    with ExitStack() as stack:
        return check_out(repository, revision, folder=folder, build=build, stack=stack)


def test_a_clean_checkout_is_used_again_and_a_changed_one_is_made_anew(repository: Path) -> None:
    place = checked_out(repository)
    (place / "mark").touch()
    assert (checked_out(repository) / "mark").exists()
    (place / "speed.py").write_text("changed", encoding="utf-8")
    assert (checked_out(repository) / "speed.py").read_text(encoding="utf-8") == BEFORE
    assert not (place / "mark").exists()
    (place / "mark").touch()
    git(repository, "worktree", "lock", str(place))
    place.with_name(f"{place.name}.built").unlink()  # as where the one who made it was killed
    assert not (checked_out(repository) / "mark").exists()
    (place / ".git").write_text("garbage", encoding="utf-8")
    assert git(checked_out(repository), "status", "--porcelain") == ""


def test_old_checkouts_are_removed_unless_they_are_in_use(repository: Path) -> None:
    first = checked_out(repository)
    with ExitStack() as stack:
        folder = repository / ".perfsuite"
        check_out(repository, revision_of(repository, "main"), folder=folder, build="", stack=stack)
        for number in range(KEPT + 1):
            commit(repository, speed=f"# {number}")
            checked_out(repository)
        assert first.exists()
        assert len(list(first.parent.glob("*.built"))) == KEPT + 1
    commit(repository, speed="# last")
    checked_out(repository)
    assert not first.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == KEPT + 1


def test_a_link_of_another_revision_leads_nowhere(repository: Path, tmp_path: Path) -> None:
    folder = repository / "baselines"
    folder.mkdir()
    (folder / "acme.json").symlink_to("/etc/passwd")
    commit(repository)
    place = folder_at(folder, "HEAD", tmp_path)
    assert not (place / "acme.json").is_symlink()
    assert (place / "acme.json").read_text(encoding="utf-8") == "/etc/passwd"


def test_a_repository_is_found_from_inside_it_and_only_there(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "deep").mkdir()
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    assert repository_of(repository / "deep") == repository
    with pytest.raises(UsageError, match="no git repository"):
        repository_of(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="git cannot be run"):
        repository_of(repository)


def test_the_instrument_is_not_imported_from_a_checkout(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "perfsuite", tmp_path / "perfsuite", ignore=shutil.ignore_patterns("*c"))
    mover = Mover(Tree(str(tmp_path), str(ROOT)))
    assert mover.find_spec("perfsuite.stats", perfsuite.__path__) is None
