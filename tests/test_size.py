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


def test_what_grows_beyond_its_alarm_fails(capsys: pytest.CaptureFixture[str]) -> None:
    SIZE["TODAY"].update(dict.fromkeys(SIZE["LIMITS"], 1_000_000))
    assert SIZE["main"]() == 0
    SIZE["TODAY"]["modules"] = 1
    assert SIZE["main"]() == 1
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "ALARM" in line)
    assert told.startswith("modules ")
