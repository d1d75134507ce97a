"""The size tool: what a code line is, and that growth fails."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SIZE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "size.py"))
SOURCE = '''"""A module."""

# A comment.
def one(value: int) -> str:
    """Return a text.

    Of two lines.
    """
    text = """no docstring

    """  # a comment behind it
    return (
        text + str(value)
    )
'''


def test_blanks_comments_and_docstrings_are_no_code() -> None:
    assert SIZE["size_of"](SOURCE) == (7, 3)


def test_what_grows_beyond_its_alarm_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perfsuite").mkdir()
    (tmp_path / "perfsuite" / "model.py").write_text("one = 1\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[tool.importlinter]\ncontracts = []\n")
    monkeypatch.setitem(SIZE["main"].__globals__, "ROOT", tmp_path)
    assert SIZE["main"]() == 0
    (tmp_path / "perfsuite" / "odd.py").write_text("one = 1\n", encoding="utf-8")
    assert SIZE["main"]() == 1
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "ALARM" in line)
    assert told.startswith("elsewhere ")
