"""Runs one variant alone, in a process that a profiler or debugger can hold."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from perfsuite.boundary import PackError, PerfError, UsageError
from perfsuite.devices.protocol import open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Accelerator, Axes, Evidence, Kernel, Regime, Settings
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_of
from perfsuite.run.project import say, say_error
from perfsuite.store.files import refusing
from perfsuite.workers.process import child_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the child is to launch; ``paths`` is the parent's ``sys.path``."""

    pack: str
    origin: str
    case: str
    axes: Axes
    device: str
    launches: int
    check: bool
    paths: tuple[str, ...]
    kernels: tuple[Kernel, ...] = ()
    accelerator: Accelerator | None = None


def launch(order: Order, profiler: Sequence[str]) -> int:
    """Run the order in a child, under the profiler if there is one; return the exit status."""
    text = msgspec.json.encode(order).decode()
    command = [*profiler, sys.executable, "-P", "-m", "perfsuite.cli.launch", text]
    remedy = "put it on PATH, or give its whole path after --"
    with refusing(f"cannot start {command[0]!r}", "", remedy=remedy, kind=UsageError):
        return subprocess.run(command, check=False, env=child_environment()).returncode


def carry_out(order: Order) -> None:
    """Build, check and launch; raises what the variant or the device has against it."""
    device = open_device(order.device, accelerator=order.accelerator)
    loaded = load_pack(order.pack, order.origin, order.kernels)
    if order.case not in loaded.cases:
        raise PackError(f"pack {order.pack!r} has no case {order.case!r}", where=order.origin)
    case = loaded.cases[order.case]
    if case.ranks:
        raise UsageError(
            f"{order.case!r} is run by {order.axes[case.ranks]} ranks, not by one process",
            where=order.origin,
            remedy=f"torchrun --nproc-per-node {order.axes[case.ranks]} "
            "-m perfsuite.workers.rank 'ID'",
        )
    missing = missing_of([n for n in case.needs if n.applies(order.axes)], device.facts())
    if missing:
        raise UsageError(f"{order.case!r} cannot run here: it {missing}", where=order.origin)
    session = Session(device, case, order.axes, Settings(check_only=True), seed=0)
    if order.check:
        session.announce = lambda phase: say(f"{phase} ...")
        session.prepare()
        _say_check(session.finish())
    if case.regime is not Regime.EXACT:
        _launch(session, order.launches)
    device.close()


def _say_check(evidence: Evidence) -> None:
    error = evidence.error
    say("right" if error is None else f"right: relative error {error:.2g}")
    for name, value in evidence.exact.items():
        say(f"{name} {value:g}")


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
