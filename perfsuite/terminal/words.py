"""Text in the characters and widths that every terminal and JUnit reader has."""

from __future__ import annotations

from perfsuite.report import view

ID_WIDTH = 36
# What is told may come from a pack: no control character of it reaches the terminal.
_CONTROLS = {chr(code): "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_PLAIN = str.maketrans(
    {
        **_CONTROLS,
        view.SPACE: " ",
        view.MINUS: "-",
        view.NOTHING: "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{MICRO SIGN}": "u",
    }
)


def plain(text: str) -> str:
    """Return text without the report's finer characters and without control characters."""
    return text.translate(_PLAIN)


def shortened(variant: str, most: int = ID_WIDTH) -> str:
    """Return an id cut in its middle, so that a line of progress keeps its length."""
    if len(variant) <= most:
        return variant.ljust(most)
    half = (most - 1) // 2
    return f"{variant[:half]}~{variant[-half:]}"
