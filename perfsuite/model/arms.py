"""What two arms are: another revision of the code under test, against the working tree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SHORT_COMMIT = 7


class Arm(StrEnum):
    """A is the revision that is compared with, B the working tree: what every run measures."""

    A = "A"
    B = "B"


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, and the name it was asked for by."""

    commit: str
    name: str

    def __str__(self) -> str:
        return f"revision {self.commit[:SHORT_COMMIT]} ({self.name})"


@dataclass(frozen=True, slots=True)
class Tree:
    """Where an arm's code lies: ``root`` is a checkout of ``repository``, or is it itself.

    ``front`` are the folders that code is imported from by name, first of all.
    """

    root: str
    repository: str
    front: tuple[str, ...] = ()
