"""Text in the characters and widths that every terminal and JUnit reader has."""

from __future__ import annotations

import re

from perfsuite import boundary
from perfsuite.report import view

ID_WIDTH = 36
_PLAIN = str.maketrans(
    {
        view.SPACE: " ",
        view.MINUS: "-",
        view.NOTHING: "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{MICRO SIGN}": "u",
    }
)
# A GitHub runner obeys lines that begin so, after blanks, and the second anywhere in a line. Also
# where we do not know of it: a container's output is printed by the job that started it.
_COMMAND = re.compile(r"^(\s*)(?=::)", re.MULTILINE)


def plain(text: str, *, most: int = boundary.TEXT_CHARACTERS) -> str:
    """Return text without the report's finer characters, and with nothing that who shows it obeys.

    That is a terminal, or a workflow of GitHub's that reads commands in what a job prints.
    """
    found = boundary.plain(text.translate(_PLAIN), most=most, instead="?")
    return _COMMAND.sub(r"\1| ", found).replace("##[", "# #[")


def shortened(variant: str) -> str:
    """Return an id cut in its middle, so that a line of progress keeps its length."""
    if len(variant) <= ID_WIDTH:
        return variant.ljust(ID_WIDTH)
    half = (ID_WIDTH - 1) // 2
    return f"{variant[:half]}~{variant[-half:]}"
