"""The crews before and after the one at work: the last leaves and the next starts beside it."""

from __future__ import annotations

from collections.abc import Callable

from perfsuite.panel.crew import Crew
from perfsuite.panel.legs import Wave

# How long blocks wait for the next workers to have started, which would disturb them.
AHEAD_LIMIT_S = 2.0


class Relay:
    """Hides starts and ends of workers behind checks, which are not timed.

    ``start`` makes a crew; ``fits`` says whether the processes of all slots can hold so many bytes
    each. Nothing is hidden where the host is what is measured.
    """

    def __init__(
        self, start: Callable[[Wave], Crew], *, fits: Callable[[int], bool], is_hidden: bool
    ) -> None:
        self.ahead: Crew | None = None
        self._leaving: Crew | None = None
        self._start = start
        self._fits = fits
        self._is_hidden = is_hidden

    def take(self, wave: Wave) -> Crew:
        """Return the crew of a wave: the one that was started ahead, or a new one."""
        crew, self.ahead = self.ahead, None
        if crew is not None and crew.wave == wave and not crew.is_stale:
            return crew
        if crew is not None:
            crew.close()
        return self._start(wave)

    def start_ahead(self, now: Wave, following: Wave | None) -> None:
        """Start the next crew, unless the device's memory or cores are all taken."""
        if following is None or not self._is_hidden or self.ahead is not None:
            return
        if self._fits(now.memory_bytes) and self._fits(following.memory_bytes):
            self.ahead = self._start(following)

    def await_ahead(self) -> None:
        """Wait until the next crew has started, for a while."""
        if self.ahead is not None:
            self.ahead.await_news(AHEAD_LIMIT_S)

    def let_go(self, crew: Crew) -> None:
        """Tell a crew that has finished to leave; seen out later if the next one fits beside it.

        Freeing what a process had on a GPU takes a while.
        """
        self._leaving = crew
        crew.hang_up()
        beside = self.ahead.wave.memory_bytes if self.ahead else 0
        if self.ahead is None or not self._fits(crew.wave.memory_bytes + beside):
            self.see_out()

    def see_out(self) -> None:
        """Wait until the crew that was told to leave is gone."""
        crew, self._leaving = self._leaving, None
        if crew is not None:
            crew.close()

    def drop_ahead(self) -> bool:
        """End the crew that was started ahead; say whether there was one."""
        crew, self.ahead = self.ahead, None
        if crew is not None:
            crew.close()
        return crew is not None
