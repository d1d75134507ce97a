"""Where the scenes of the faults are played."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A folder that is not in pytest's own, which is closed to other users."""
    root = Path(tempfile.mkdtemp(prefix="faults "))
    root.chmod(0o755)
    made = Lab(root)
    yield made
    made.close()
