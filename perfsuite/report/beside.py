"""Runs side by side, each of another SKU: what the same variants and claims are on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from perfsuite.model import ClaimVerdict
from perfsuite.report import facts, marks, view
from perfsuite.report.book import Book
from perfsuite.report.metrics import judged
from perfsuite.report.rates import rate_of
from perfsuite.report.subject import Subject
from perfsuite.roofline import Peaks

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant on one SKU; ``ratio`` is how many times faster it is than on the first."""

    text: str
    aside: str
    ratio: str
    mark: marks.Mark | None
    keys: str


@dataclass(frozen=True, slots=True)
class Line:
    """One variant on every SKU, in the order of the runs."""

    variant: str
    anchor: str
    cells: tuple[Cell, ...]

    @property
    def keys(self) -> str:
        """The sort keys: those of the cells behind two columns that have none."""
        return " ".join(("- -", *(cell.keys for cell in self.cells)))


@dataclass(frozen=True)
class Matrix:
    """Several runs as one table each of variants, claims and facts."""

    books: tuple[Book, ...]

    @property
    def names(self) -> list[str]:
        """The columns: the SKUs, told apart by their runs where one stands twice."""
        slugs = [book.run.sku.slug for book in self.books]
        runs = [book.run.id for book in self.books]
        if self.is_of_one_sku:
            return runs
        return [
            slug if slugs.count(slug) == 1 else f"{slug}, {run}"
            for slug, run in zip(slugs, runs, strict=True)
        ]

    @property
    def is_of_one_sku(self) -> bool:
        """Say whether the runs could be judged against each other."""
        return len({book.run.sku.slug for book in self.books}) == 1

    @cached_property
    def lines(self) -> list[Line]:
        """The variants that at least one run has a value of."""
        found = _across(
            self.books,
            lambda book: {one.variant.id: one for one in book.subjects if not one.is_skipped},
        )
        return [
            Line(name, f"b-{index}", tuple(self._cells(held)))
            for index, (name, held) in enumerate(found)
        ]

    @cached_property
    def claims(self) -> list[tuple[str, list[ClaimVerdict | None]]]:
        """The claims of any of the runs."""
        return _across(self.books, lambda book: {one.claim: one for one in book.claims})

    @property
    def differences(self) -> list[tuple[str, list[str | None]]]:
        """The facts of the machines that are not alike."""
        found = _across(self.books, lambda book: facts.everything(book.run.facts))
        return [(name, held) for name, held in found if len(set(held)) > 1]

    def _cells(self, held: Sequence[Subject | None]) -> Iterable[Cell]:
        first = held[0].now() if held[0] else None
        for subject, book in zip(held, self.books, strict=True):
            yield _cell(subject, first, book.peaks) if subject else _NO_CELL


_NO_CELL = Cell(view.NOTHING, "", "", None, "- -")


def _cell(subject: Subject, first: float | None, peaks: Peaks) -> Cell:
    now, counted = subject.now(), judged(subject)
    rate, share = rate_of(subject.variant.work, now, peaks)
    text = view.time(now, subject.digits()) if now else counted.now if counted else view.NOTHING
    asides = (counted.name if counted else "", rate, view.share(share) if share else "")
    ratio = first / now if first and now else None
    return Cell(
        text=text,
        aside=", ".join(one for one in asides if one not in {"", view.NOTHING}),
        ratio=view.ratio(ratio) if ratio else "",
        mark=subject.mark if subject.mark.tone == "fail" else None,
        keys=" ".join("-" if one is None else f"{one:.5g}" for one in (now, ratio)),
    )


def _across(
    books: Iterable[Book], read: Callable[[Book], dict[str, _T]]
) -> list[tuple[str, list[_T | None]]]:
    sides = [read(book) for book in books]
    names = dict.fromkeys(name for side in sides for name in side)
    return [(name, [side.get(name) for side in sides]) for name in names]
