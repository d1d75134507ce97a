"""Two variants in one worker whose blocks alternate in quads, so that what it suffers cancels."""

from __future__ import annotations

import random
from collections.abc import Callable

from perfsuite.engine.session import Session
from perfsuite.model import Evidence, Sampling

QUADS = ((0, 1, 1, 0), (1, 0, 0, 1))


class Quads:
    """A session and its rival: a block is a quad, ABBA or BAAB, drawn from the seed.

    ``sampling`` is the rival's, as ``prepare`` is given the session's own.
    """

    def __init__(
        self, own: Session, rival: Session, *, sampling: Sampling | None, seed: int
    ) -> None:
        self._sides = (own, rival)
        self._sampling = sampling
        self._order = random.Random(seed)  # noqa: S311 - an order, not a secret

    @property
    def sampling(self) -> Sampling | None:
        """How the session itself is sampled."""
        return self._sides[0].sampling

    def check(self, announce: Callable[[str], None], *, is_thorough: bool = True) -> None:
        """Build and check both."""
        for side in self._sides:
            side.check(announce, is_thorough=is_thorough)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None = None) -> None:
        """Calibrate and settle both."""
        own, rival = self._sides
        own.prepare(announce, sampling)
        rival.prepare(announce, self._sampling)

    def block(self) -> None:
        """Take four turns."""
        for side in self._order.choice(QUADS):
            self._sides[side].block(is_paired=True)

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Check both once more."""
        for side in self._sides:
            side.recheck(announce)

    def finish(self) -> tuple[Evidence, Evidence]:
        """Return what both have to say; the blocks of one quad are two by two."""
        own, rival = self._sides
        return own.finish(), rival.finish()
