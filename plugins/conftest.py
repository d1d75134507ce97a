"""Makes the packs importable, installed or not; says where scripts' output is shared."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

sys.path[:0] = [str(project.parent) for project in HERE.glob("*/pyproject.toml")]
sys.path += [str(HERE.parent / "tests"), str(HERE)]


@pytest.fixture(scope="session", autouse=True)
def _shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    import pack_scripts

    own = tmp_path_factory.getbasetemp()
    pack_scripts.folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
