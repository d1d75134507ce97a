"""Says where the processes of a session share what the packs' scripts printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def _shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    import pack_scripts

    own = tmp_path_factory.getbasetemp()
    pack_scripts.folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
