"""What a project's settings say without pytest is what pytest itself would read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

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


ODD = {
    "a default section is one like others": (
        "tox.ini",
        "[DEFAULT]\nperf_history = x\n[pytest]\nperf_baselines = a\n",
    ),
    "names have cases": ("pytest.ini", "[pytest]\nPERF_HISTORY = x\n"),
    "the value stands on the next lines": (
        "pytest.ini",
        "[pytest]\nperf_history =\n    sqlite:///x\nperf_baselines =\n    a\n\n    # no\n    b\n",
    ),
    "a percent sign is none of ours": ("pytest.ini", "[pytest]\nperf_history = a%40b\n"),
    "an empty table is none": ("pyproject.toml", "[tool.pytest]\n"),
    "an empty table of ini options is one": ("pyproject.toml", "[tool.pytest.ini_options]\n"),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_files_are_read_as_pytest_reads_them(tmp_path: Path, what: str) -> None:
    name, text = ODD[what]
    write(tmp_path, "setup.cfg")
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = locate_config(tmp_path, [tmp_path])[2]
    theirs: dict[str, Any] = {key: getattr(value, "value", value) for key, value in found.items()}
    assert text_of(tmp_path, "perf_history", "none") == theirs.get("perf_history", "none")
    paths = theirs.get("perf_baselines", "")
    words = shlex.split(paths) if isinstance(paths, str) else paths
    assert paths_of(tmp_path, "perf_baselines", []) == tuple(tmp_path / word for word in words)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "\ufeff[pytest]\nperf_history = x\n"),
        ("pyproject.toml", '[tool.pytest]\nperf_history = "x"\n[tool.pytest.ini_options]\n'),
    ],
)
def test_odd_files_are_read_as_by_newer_pytests(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert text_of(tmp_path, "perf_history", "none") == "x"


def test_a_file_with_both_kinds_of_tables_is_refused_as_by_pytest(tmp_path: Path) -> None:
    both = "[tool.pytest]\nverbosity = 1\n[tool.pytest.ini_options]\nperf_history = 'x'\n"
    (tmp_path / "pyproject.toml").write_text(both, encoding="utf-8")
    with pytest.raises(UsageError, match="ini_options"):
        text_of(tmp_path, "perf_history", "")
