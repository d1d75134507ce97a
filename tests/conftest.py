"""What holds for all tests of perfsuite's own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perfsuite.cli import main

# A developer's team has a history; what tests make up does not belong there.
os.environ.pop("PERFSUITE_HISTORY", None)
# A shell's background job ignores Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Lock apart from whoever else tests or measures on this machine, unless this measures."""
    if not config.getoption("perf", default=False):
        os.environ["PERFSUITE_LOCKS"] = f"tests {os.getpid()}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in the current folder, with locks and servers' files of its own."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def perfsuite(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command in the project; return its exit code and all it said."""
    assert Path.cwd() == project

    def call(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["perfsuite", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capfd.readouterr()
        assert "Traceback" not in said.out + said.err
        return int(caught.value.code or 0), said.out + said.err

    return call
