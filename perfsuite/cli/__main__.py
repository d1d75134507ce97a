"""The ``perfsuite`` command as ``python -m perfsuite.cli``."""

from __future__ import annotations

from perfsuite.cli import main

if __name__ == "__main__":
    main()
