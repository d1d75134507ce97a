"""The tests of a project without case modules: one item per variant, claim and broken pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what stands here at run time, a project's names of tests may fit
    from collections.abc import Callable
    from typing import Any


def test_variant(variant: Any, judged: Callable[[Any], None]) -> None:
    """Report what became of a variant."""
    judged(variant)


def test_claim(claim: Any, judged: Callable[[Any], None]) -> None:
    """Report what became of a claim."""
    judged(claim)


def test_pack(broken_pack: Any, judged: Callable[[Any], None]) -> None:
    """Report why a pack could not be listed."""
    judged(broken_pack)
