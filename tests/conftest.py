"""What holds for all tests of perfsuite's own."""

from __future__ import annotations

import os

# A developer's team has a history; what tests make up does not belong there.
os.environ.pop("PERFSUITE_HISTORY", None)
