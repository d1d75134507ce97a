"""What a pack adds to the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A paragraph and a table under a title; all of it is shown as text, never as markup.

    ``columns`` are the heads of the table, ``rows`` have a cell for each of them.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        cells = [self.title, self.text, *self.columns, *(cell for row in self.rows for cell in row)]
        if not all(isinstance(cell, str) for cell in cells):
            raise ValueError(f"section {self.title!r} holds what is no text")
        if not self.title.strip():
            raise ValueError("a section needs a title")
        if odd := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(
                f"section {self.title!r} has {len(self.columns)} columns and a row of {len(odd[0])}"
            )
