"""What a project's settings say without pytest is what pytest itself would read."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.config.findpaths import locate_config

from perfsuite.errors import UsageError
from perfsuite.ini import paths_of, text_of

INI = "[{}]\nperf_baselines = one 'two words'\nperf_history = sqlite:///{}\n"
TOML = '[{}]\nperf_baselines = ["one", "two words"]\nperf_history = "sqlite:///{}"\n'
# In the order in which one hides the next.
FILES = {
    "pytest.ini": INI.format("pytest", 1),
    ".pytest.ini": INI.format("pytest", 2),
    "pyproject.toml": TOML.format("tool.pytest.ini_options", 3),
    "tox.ini": INI.format("pytest", 4),
    "setup.cfg": INI.format("tool:pytest", 5),
}


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).write_text(FILES[name], encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_the_file_that_pytest_takes_is_read(tmp_path: Path, name: str) -> None:
    names = list(FILES)
    write(tmp_path, *names[names.index(name) :])
    _, taken, *_ = locate_config(tmp_path, [tmp_path])
    assert taken == tmp_path / name
    assert text_of(tmp_path, "perf_history", "") == f"sqlite:///{names.index(name) + 1}"
    found = paths_of(tmp_path, "perf_baselines", ["baselines"])
    assert found == (tmp_path / "one", tmp_path / "two words")


@pytest.mark.parametrize(
    ("name", "table"), [("pytest.toml", "pytest"), ("pyproject.toml", "tool.pytest")]
)
def test_tables_of_newer_pytests_are_read(tmp_path: Path, name: str, table: str) -> None:
    (tmp_path / name).write_text(TOML.format(table, 6), encoding="utf-8")
    write(tmp_path, "tox.ini")
    assert text_of(tmp_path, "perf_history", "") == "sqlite:///6"


def test_a_file_of_pytests_alone_holds_without_a_section(tmp_path: Path) -> None:
    write(tmp_path, "tox.ini")
    (tmp_path / "pyproject.toml").touch()
    assert text_of(tmp_path, "perf_history", "none") == "sqlite:///4"
    (tmp_path / "pytest.ini").touch()
    assert text_of(tmp_path, "perf_history", "none") == "none"
    assert paths_of(tmp_path, "perf_baselines", ["baselines"]) == (tmp_path / "baselines",)


@pytest.mark.parametrize(
    ("name", "text"), [("pyproject.toml", "[oh"), ("pytest.ini", "oh"), ("tox.ini", "[a]\n[a]\n")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="not valid") as caught:
        text_of(tmp_path, "perf_history", "")
    assert name in str(caught.value)
