"""Runs one variant alone, in a process that a profiler or debugger can hold."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from perfsuite.boundary import PerfError, UsageError
from perfsuite.engine.measure import Session
from perfsuite.model import Regime, Settings
from perfsuite.packs.select import missing_of
from perfsuite.run.project import say, say_error
from perfsuite.store.files import refusing
from perfsuite.workers.messages import Job
from perfsuite.workers.process import child_environment
from perfsuite.workers.server import opened


class Order(Job, frozen=True, kw_only=True):
    """What the child is to launch; ``paths`` is the parent's ``sys.path``."""

    settings: Settings = Settings(check_only=True)
    launches: int
    check: bool
    paths: tuple[str, ...] = ()


def launch(order: Order, profiler: Sequence[str]) -> int:
    """Run the order in a child, under the profiler if there is one; return the exit status."""
    text = msgspec.json.encode(order).decode()
    command = [*profiler, sys.executable, "-P", "-m", "perfsuite.cli.launch", text]
    remedy = "put it on PATH, or give its whole path after --"
    with refusing(f"cannot start {command[0]!r}", "", remedy=remedy, kind=UsageError):
        return subprocess.run(command, check=False, env=child_environment()).returncode


def carry_out(order: Order) -> None:
    """Build, check and launch; raises what the variant or the device has against it."""
    session = opened(order)
    case, device = session.case, session.device
    if case.ranks:
        ranks = order.axes[case.ranks]
        raise UsageError(
            f"{order.case!r} is run by {ranks} ranks, not by one process",
            where=order.origin,
            remedy=f"torchrun --nproc-per-node {ranks} -m perfsuite.workers.rank 'ID'",
        )
    missing = missing_of([n for n in case.needs if n.applies(order.axes)], device.facts())
    if missing:
        raise UsageError(f"{order.case!r} cannot run here: it {missing}", where=order.origin)
    if order.check:
        session.announce = lambda phase: say(f"{phase} ...")
        session.prepare()
        evidence = session.finish()
        right = "right" if evidence.error is None else f"right: relative error {evidence.error:.2g}"
        for line in (right, *(f"{name} {value:g}" for name, value in evidence.exact.items())):
            say(line)
    if case.regime is not Regime.EXACT:
        _launch(session, order.launches)
    device.close()


def _launch(session: Session, launches: int) -> None:
    (launch_once,) = session.launches(1)
    launch_once()
    session.device.synchronize()
    times_us = []
    for _ in range(launches):
        started = time.perf_counter_ns()
        launch_once()
        session.device.synchronize()
        times_us.append((time.perf_counter_ns() - started) / 1e3)
    say(
        f"{launches} launches after a warm-up; median {statistics.median(times_us):.1f} us, "
        "host time with synchronisation: pytest --perf measures"
    )


def main() -> None:
    """Carry out the order in argv."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    sys.path += [path for path in order.paths if path not in sys.path]
    try:
        carry_out(order)
    except PerfError as error:
        say_error(error)
        sys.stderr.flush()
        os._exit(2)


if __name__ == "__main__":
    main()
