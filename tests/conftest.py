"""What holds for all tests of perfsuite's own."""

from __future__ import annotations

import os
import signal

# A developer's team has a history; what tests make up does not belong there.
os.environ.pop("PERFSUITE_HISTORY", None)
# A shell's background job ignores Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
