"""Plays a service scenario and times each play."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from perfsuite.check import check_play, check_scenario, played
from perfsuite.engine.bench import Bench
from perfsuite.model import Block, Evidence, Sampling, Scenario

# What the plays of one process may take together, if they are more than one: a play of seconds is
# itself long, and what is judged is one value of each process, of which there are several.
PLAYS_US = 2e6


class Playing:
    """The measuring of a scenario: wall time and service metrics of each play."""

    def __init__(self, bench: Bench, scenario: Scenario) -> None:
        self._bench = bench
        self._scenario = scenario
        self._error: float | None = None
        self._expected: Any = None

    @property
    def has_enough(self) -> bool:
        """Say whether one more play as long as the last is too much, on any rank."""
        times_us = [time_us for block in self._bench.log.blocks for time_us in block.time_us]
        if not times_us:
            return False
        return self._bench.device.agree(sum(times_us) + times_us[-1]) > PLAYS_US

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Check one play, which warms up as well; raises WrongResultError or CaseError."""
        bench = self._bench

        def checked() -> float | None:
            return check_scenario(
                bench.device,
                self._scenario,
                where=bench.case.name,
                seed=bench.settings.seed,
                is_thorough=is_thorough,
            )

        self._error = bench.phase("check", announce, checked)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Do nothing more."""

    def block(self) -> None:
        """Play once: a play may hold many requests."""
        with self._bench.timed("measure"):
            self._play()

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Do nothing more: the output of each play was compared."""

    def evidence(self) -> Evidence:
        """Return the error of the check; a play is one launch."""
        return Evidence(slot=0, seed=0, backend="played", error=self._error)

    def _play(self) -> None:
        bench = self._bench
        started = time.monotonic()
        bench.device.synchronize()
        begun = time.perf_counter()
        # The seed of all processes and runs: a trace of its own would be another workload.
        output, found = played(self._scenario, bench.settings.seed, bench.case.name)
        bench.device.synchronize()
        time_us = 1e6 * (time.perf_counter() - begun)
        if self._expected is None:
            self._expected = self._scenario.reference(bench.settings.seed)
        # What was right once may be wrong on a warm cache, or when a graph is replayed.
        pair = (output, self._expected)
        self._error = check_play(bench.device, self._scenario, pair, where=bench.case.name)
        bench.log.blocks.append(
            Block(
                time_us=(time_us,),
                start_s=started,
                health=bench.device.health(),
                metrics={name: (value,) for name, value in bench.declared(found).items()},
            )
        )
