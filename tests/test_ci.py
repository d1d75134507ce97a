"""CI's script, with a tox that only notes what it is asked for; and the tool that holds sizes."""

from __future__ import annotations

import os
import runpy
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "run"
LIMIT_S = 20
MADE = ("-e lint --notest", "-e tests --notest", "-e lint", "-e perf --notest")
STEPS = (*MADE, "-e tests", "-e perf")
# Stands for tox, in a folder of which the name of each file is a step that fails or takes long.
TOX = """#!/bin/bash
shift
[[ "$PWD" == *" "* && "$TOX_WORK_DIR" != *" "* ]] || exit 4
echo "$$ $*" >>"${TOX_WORK_DIR%/.tox}/asked"
[[ ! -e "long/$*" ]] || sleep 60
[[ ! -e "failing/$*" ]] || { echo "$* went wrong"; exit 3; }
"""
VENV = """#!/bin/bash
mkdir -p .venv-ci/bin
cp tox .venv-ci/bin/tox
ln -sf /bin/true .venv-ci/bin/pip
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str, str], subprocess.Popen[str]]:
    programs = {"python3": VENV} | dict.fromkeys(("chromium", "initdb", "apt-get"), "#!/bin/bash\n")
    for name, text in {**programs, "../checkout/tox": TOX}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        (tmp_path / "checkout").mkdir(exist_ok=True)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    for folder in ("long", "failing", ".ci"):
        (tmp_path / "checkout" / folder).mkdir()
    shutil.copy(SCRIPT, tmp_path / "checkout" / ".ci")

    def run(kind: str, step: str) -> subprocess.Popen[str]:
        (tmp_path / "checkout" / kind / step).touch()
        return subprocess.Popen(
            [tmp_path / "checkout" / ".ci" / "run"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return run


def _asked(folder: Path) -> dict[str, int]:
    notes = folder / "checkout" / "asked"
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return {words: int(pid) for pid, _, words in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("step", [*STEPS, "none"])
def test_a_step_that_fails_fails_ci_and_shows_why_and_else_all_run(
    tmp_path: Path, start: Callable[[str, str], subprocess.Popen[str]], step: str
) -> None:
    process = start("failing", step)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode == 0, f"{step} went wrong" in said) == (
        step == "none",
        step in STEPS,
    )
    assert ("-e tests" in _asked(tmp_path)) is (step not in MADE)
    assert step != "none" or set(_asked(tmp_path)) == set(STEPS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_ci_leaves_no_installation_behind(
    tmp_path: Path, start: Callable[[str, str], subprocess.Popen[str]], number: signal.Signals
) -> None:
    (tmp_path / "checkout" / "long" / "-e lint").touch()
    process = start("long", "-e tests --notest")
    while not {"-e lint", "-e tests --notest"} <= _asked(tmp_path).keys():
        time.sleep(0.01)
    making = os.pidfd_open(_asked(tmp_path)["-e tests --notest"])
    os.killpg(process.pid, number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == -number
    assert select.select([making], [], [], LIMIT_S)[0]
    os.close(making)


# The size tool: what a code line is, and that growth fails.

SIZE = runpy.run_path(str(ROOT / "tools" / "size.py"))


def test_what_grows_beyond_its_alarm_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perfsuite").mkdir()
    (tmp_path / "perfsuite" / "model.py").write_text("one = 1\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[tool.importlinter]\ncontracts = []\n")
    monkeypatch.setitem(SIZE["main"].__globals__, "ROOT", tmp_path)
    assert SIZE["main"]() == 0
    (tmp_path / "perfsuite" / "odd.py").write_text("one = 1\n", encoding="utf-8")
    assert SIZE["main"]() == 1
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "ALARM" in line)
    assert told.startswith("elsewhere ")
