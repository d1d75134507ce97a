"""The process that Nsight Compute watches: it builds a variant and launches it once, warm."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from perfsuite.boundary import PerfError, plain
from perfsuite.workers import server as worker
from perfsuite.workers.messages import TraceOne, decode

# Beyond the limit of those who started it, who may be gone.
GRACE_S = 5


def main(arguments: Sequence[str]) -> str | None:
    """Launch the variant of the file that comes first, within the seconds that come second.

    Returns why that cannot be, if so; raises what the variant raises.
    """
    path, limit_s = arguments
    signal.alarm(int(limit_s) + GRACE_S)
    request = decode(Path(path).read_bytes())
    if not isinstance(request, TraceOne):
        return f"{path} asks for {type(request).__name__}, not for one variant"
    try:
        worker.show(request.job)
    except PerfError as error:
        return plain(error.what.partition("\n")[0])
    return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
