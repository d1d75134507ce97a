"""Runs one variant alone: under a profiler or debugger, or as one of the ranks of torchrun."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perfsuite.boundary import PerfError, UsageError, from_environment
from perfsuite.devices.protocol import Gang, join_elastic
from perfsuite.engine.measure import Session
from perfsuite.model import DeviceFacts, Evidence, Regime, Result, Settings, Status, Variant
from perfsuite.packs.select import missing_need, missing_of
from perfsuite.run.project import say, say_error
from perfsuite.store.files import encode, refusing
from perfsuite.workers.messages import Job, raw, read
from perfsuite.workers.process import child_environment, gang_unit, merged
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
            remedy=f"torchrun --nproc-per-node {ranks} -m perfsuite.cli run 'ID'",
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


# One rank that torchrun started, on one node or several.


def launch_rank(order: Order, variant: Variant, written: Path | None) -> int:
    """Measure with the other ranks, rank 0 says and writes what was found; return the status."""
    try:
        result = _measured(order, variant)
    except PerfError as error:
        sys.stderr.write(f"rank {from_environment('RANK') or '?'}: {error}\n")
        return 2
    if result is None:
        return 0
    (evidence,) = result.evidence
    times_us = [time_us for block in evidence.samples("time_us") for time_us in block]
    say(
        f"{result.variant}: median {statistics.median(times_us):.4g} us of {len(times_us)} "
        "samples, each by its slowest rank"
    )
    if written is not None:
        written.write_bytes(encode(result))
    return 0


def _measured(order: Order, variant: Variant) -> Result | None:
    """Return the result to rank 0, nothing to the others; raises what the variant raises."""
    gang = join_elastic(order.device)
    session = opened(replace(order, settings=Settings()), gang)
    facts = session.device.facts()
    refuse_misfit(variant, gang, facts)
    session.prepare()
    for _ in range(session.settings.rounds):
        session.block()
    session.recheck()
    parts = gang.gather(bytes(raw(replace(session.finish(), unit=facts.unit))).decode())
    gang.leave()  # not after a failure: the others may wait elsewhere, and torchrun ends them
    if gang.rank:
        return None
    found = [read(part.encode(), Evidence) for part in parts]
    whole = merged(found, variant.case.metrics)
    return Result(
        variant=variant.id,
        status=Status.OK,
        evidence=(replace(whole, unit=gang_unit(each.unit for each in found)),),
        case_version=variant.case.version,
    )


def refuse_misfit(variant: Variant, gang: Gang, facts: DeviceFacts) -> None:
    """Raise UsageError unless the variant is one for these ranks and this device."""
    if gang.ranks != variant.ranks:
        raise UsageError(
            f"{variant.id} is run by {variant.ranks} ranks, and torchrun started {gang.ranks}",
            remedy="choose --nnodes and --nproc-per-node accordingly, or another variant",
        )
    if missing := missing_need(variant, replace(facts, gpus=gang.ranks)):
        raise UsageError(f"{variant.id} cannot run here: it {missing}")


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
