"""The variants and claims of the pack `compiler`."""

from __future__ import annotations

from collections.abc import Callable

import perfsuite


def test_variant(variant: perfsuite.Variant, judged: Callable[[object], None]) -> None:
    judged(variant)


def test_claim(claim: object, judged: Callable[[object], None]) -> None:
    judged(claim)


def test_pack(broken_pack: object, judged: Callable[[object], None]) -> None:
    judged(broken_pack)
