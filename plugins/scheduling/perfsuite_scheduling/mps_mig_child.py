"""A process that runs small jobs on a GPU it shares: one number of jobs in, one JSON line out.

It ends when its input ends, that is with the process that started it.
"""

import ctypes
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perfsuite.gpu import asked, driver

THREADS, BLOCKS, ROUNDS = 256, 16, 4096
VALUES = THREADS * BLOCKS
_BYTES = 4 * VALUES


class Lane:
    """A stream with a buffer of its own."""

    def __init__(self, device: Any, kernel: Any) -> None:
        self._device, self._kernel = device, kernel
        self._stream = device.create_stream()
        self._place = asked(driver.cuMemAlloc(_BYTES))[0]

    def run(self, jobs: int) -> dict[str, Any]:
        """Run the jobs one after the other, each awaited; tell their times and what is left."""
        from cuda.core import LaunchConfig, launch

        self._device.set_current()  # in this thread
        values = (ctypes.c_uint32 * VALUES)(*range(VALUES))
        # In this stream: a copy of so few bytes may return before they have arrived, and the stream
        # does not wait for the default one, as other streams would.
        copied = self._place, ctypes.addressof(values), _BYTES, self._stream.handle
        asked(driver.cuMemcpyHtoDAsync(*copied))
        self._stream.sync()  # no part of the first job's time
        config = LaunchConfig(grid=BLOCKS, block=THREADS)
        times_us = []
        for _ in range(jobs):
            begun = time.perf_counter()
            launch(self._stream, config, self._kernel, int(self._place), int(self._place))
            self._stream.sync()
            times_us.append(1e6 * (time.perf_counter() - begun))
        asked(driver.cuMemcpyDtoH(ctypes.addressof(values), self._place, _BYTES))
        return {"times_us": times_us, "sum": sum(values)}


def main(source: str, lanes: int) -> None:
    """Say that all is ready, then do what is asked, line by line."""
    from cuda.core import Device, Program, ProgramOptions

    device = Device(0)
    device.set_current()
    options = ProgramOptions(
        std="c++17",
        arch=f"sm_{device.arch}",
        define_macro=[("THREADS", str(THREADS)), ("ROUNDS", str(ROUNDS))],
    )
    program = Program(Path(source).read_text(encoding="utf-8"), "c++", options)
    kernel = program.compile("cubin", name_expressions=("advance",)).get_kernel("advance")
    chosen = [Lane(device, kernel) for _ in range(lanes)]
    with ThreadPoolExecutor(lanes) as pool:
        _say("ready")
        for line in sys.stdin:
            _say(list(pool.map(lambda lane, jobs=int(line): lane.run(jobs), chosen)))


def _say(told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
