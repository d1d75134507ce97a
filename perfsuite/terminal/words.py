"""Text in the characters and widths that every terminal and JUnit reader has."""

from __future__ import annotations

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


def plain(text: str, *, most: int = boundary.TEXT_CHARACTERS) -> str:
    """Return text without the report's finer characters, and with nothing a terminal obeys."""
    return boundary.plain(text.translate(_PLAIN), most=most, instead="?")


def shortened(variant: str, most: int = ID_WIDTH) -> str:
    """Return an id cut in its middle, so that a line of progress keeps its length."""
    if len(variant) <= most:
        return variant.ljust(most)
    half = (most - 1) // 2
    return f"{variant[:half]}~{variant[-half:]}"
