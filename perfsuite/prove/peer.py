"""A server that forks a process for each order, in which other tools time a variant.

Run as ``python -m perfsuite.prove.peer``; orders come in as JSON lines, readings go out.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from perfsuite.device import open_device
from perfsuite.errors import PerfError
from perfsuite.model import Workload
from perfsuite.packs import load_pack
from perfsuite.prove.peers import ASKED, Built, Order
from perfsuite.prove.raw import Reading


def _built(order: Order) -> Built:
    device = open_device(order.device, seed=order.seed)
    case = load_pack(order.pack, order.origin).cases[order.case]
    workload = case.build(device.context(order.seed), **order.axes)
    if not isinstance(workload, Workload):
        raise PerfError(f"case {order.case!r} is no workload")

    def inputs(index: int) -> tuple[Any, ...]:
        return workload.make_inputs(device.rng(order.seed + index))

    launch = partial(workload.fn, *inputs(0))
    launch()
    device.synchronize()
    return Built(order, launch, device.synchronize, inputs, workload)


def answers(order: Order) -> list[Reading]:
    """Return what each tool says, asked in random order; a tool that fails says why."""
    built = _built(order)
    found = []
    for tool in random.Random(order.seed).sample(order.tools, len(order.tools)):  # noqa: S311
        started = time.monotonic()
        try:
            time_us, reason = ASKED[tool](built), ""
        except Exception as error:  # noqa: BLE001 - whatever a tool has against this machine
            time_us, reason = None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        seconds = round(time.monotonic() - started, 4)
        found.append(
            Reading(
                variant=order.variant,
                unit=order.unit,
                tool=tool,
                time_us=time_us,
                seconds=seconds,
                reason=reason,
            )
        )
    return found


def _fork(order: Order, out: int) -> None:
    """Answer in a process of its own; one that dies answers nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            os.write(write, msgspec.json.encode(answers(order)))
        except BaseException as error:  # noqa: BLE001 - the child leaves here, whatever happened
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    os.write(out, (said or b"[]") + b"\n")


def main() -> None:
    """Import what the tools share, then fork for each line of the standard input."""
    out = os.dup(1)
    # What tools and libraries print is no answer.
    os.dup2(2, 1)
    for module in ("torch", "triton.testing"):
        with suppress(ImportError):
            importlib.import_module(module)  # noqa: TID251 - it may be missing
    for line in sys.stdin:
        _fork(msgspec.json.decode(line, type=Order), out)


if __name__ == "__main__":
    main()
