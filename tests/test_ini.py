"""What a project's pyproject.toml says is what pytest itself would read there."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.boundary import UsageError
from perfsuite.run.config import OTHERS, paths_of, text_of


@pytest.mark.parametrize("table", ["tool.pytest.ini_options", "tool.pytest"])
@pytest.mark.parametrize("paths", ['["one", "two words"]', "\"one 'two words'\""])
def test_settings_are_read_from_pyproject(tmp_path: Path, table: str, paths: str) -> None:
    assert text_of(tmp_path, "perf_history", "none") == "none"
    text = f'[{table}]\nperf_baselines = {paths}\nperf_history = "sqlite:///%(x)s"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert text_of(tmp_path, "perf_history", "") == "sqlite:///%(x)s"
    assert paths_of(tmp_path, "perf_baselines", ["x"]) == (tmp_path / "one", tmp_path / "two words")
    assert paths_of(tmp_path, "perf_other", ["x"]) == (tmp_path / "x",)


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_in_another_file_of_pytest_s_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[pytest]\n# perf_history\nother = perf_history\n", "utf-8")
    assert text_of(tmp_path, "perf_history", "none") == "none"
    (tmp_path / name).write_text("[pytest]\nperf_history = x\n", "utf-8")
    with pytest.raises(UsageError, match="do not read it") as caught:
        text_of(tmp_path, "perf_history", "")
    assert name in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[oh", encoding="utf-8")
    with pytest.raises(UsageError, match="not valid TOML") as caught:
        text_of(tmp_path, "perf_history", "")
    assert "pyproject.toml" in str(caught.value)
