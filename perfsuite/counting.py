"""The process that Nsight Compute watches: it builds a variant and launches it once, warm."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from perfsuite import wire, worker
from perfsuite.errors import PerfError

# Beyond the limit of those who started it, who may be gone.
GRACE_S = 5


def main() -> None:
    """Launch the variant of the file that is the first argument, within the seconds that follow."""
    signal.alarm(int(sys.argv[2]) + GRACE_S)
    request = wire.decode(Path(sys.argv[1]).read_bytes())
    if not isinstance(request, wire.TraceOne):
        sys.exit(f"{sys.argv[1]} asks for {type(request).__name__}, not for one variant")
    try:
        worker.show(request.job)
    except PerfError as error:
        sys.exit(wire.plain(error.what.partition("\n")[0]))


if __name__ == "__main__":
    main()
