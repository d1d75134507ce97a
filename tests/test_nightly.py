"""``perfsuite nightly`` with real signals on the fake device, night after night."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import test_runner as runner

from perfsuite.model import Run
from perfsuite.store.runs import list_runs, load_run

ROOT = Path(__file__).parents[1]
VARIANTS = 4
# The third variant waits in its first build until a file lets it: a night that takes its time.
WAITS = """
        if us == 250 and not pathlib.Path("go").exists():
            import time
            pathlib.Path("waits").touch()
            time.sleep(60)
"""
PACK = textwrap.dedent(
    runner.PACK.replace("[100, 200]", "[100, 200, 250, 400]").replace(
        "        factor = json", f"{WAITS}        factor = json"
    )
)


@pytest.fixture
def project(project: Path) -> Path:
    (project / "acme.py").write_text(PACK, encoding="utf-8")
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    return project


def start(project: Path, *by: str, **more: str) -> subprocess.Popen[str]:
    """Start a night, by the command or as ``by`` says."""
    options = ("-p", "perfsuite.plugin", "-p", "no:cacheprovider", "--perf-processes=1")
    script = (*(by or (sys.executable, "-m", "perfsuite.cli", "nightly")), *options)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PERF"))}
    own = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PERF_DEVICE": "fake",
        "PERF_DOCTOR": "warn",  # other work on this machine is none of the fake device's business
        "PERFSUITE_LOCKS": str(project),
    }
    return subprocess.Popen(
        [*script, f"--perf-packs={project / 'acme.py'}"],
        cwd=project / more.pop("FOLDER", "."),
        env=kept | own | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def night(project: Path, *by: str, **more: str) -> tuple[int, str]:
    with start(project, *by, **more) as script:
        told, _ = script.communicate(timeout=120)
    return script.returncode, told


def runs(project: Path) -> list[Run]:
    return [load_run(path) for path in reversed(list_runs(project / ".perfsuite"))]


def test_nights_are_stopped_resumed_judged_and_proposed(
    project: Path, perfsuite: Callable[..., tuple[int, str]]
) -> None:
    with start(project) as script:
        deadline = time.monotonic() + 60
        while not (project / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        other = night(project)
        script.send_signal(signal.SIGTERM)
        told, _ = script.communicate(timeout=60)
    assert other == (21, "nightly: another night writes to perf-night\n")
    assert (script.returncode, "start again" in told) == (2, True), told
    (stopped,) = runs(project)
    assert not stopped.finished
    assert len(stopped.results) < VARIANTS
    # It goes on, measuring nothing twice and losing nothing.
    (project / "go").touch()
    code, told = night(project, PERF_NIGHTS="0")
    assert code == 0, told
    (first,) = runs(project)
    assert f"resuming run {first.id}; results kept: {len(stopped.results)}" in told
    measured = [(result.variant, result.stage) for result in first.results]
    assert len({*measured}) == len(measured) == VARIANTS
    out = project / "perf-night"
    assert not (out / "proposal.md").exists()
    # What is slower fails, what is faster is proposed, and nothing is written to the baselines.
    assert perfsuite("baseline", "accept", first.id, "--reason=first")[0] == 0
    stored = {path: path.read_bytes() for path in project.glob("baselines/**/*.json")}
    (project / "speeds.json").write_text('{"200": 0.5, "400": 1.1}', encoding="utf-8")
    code, told = night(project, GITHUB_STEP_SUMMARY="step.md")
    assert code == 1, told
    assert "1 slower" in (project / "step.md").read_text("utf-8")
    assert json.loads((out / "verdict.json").read_text("utf-8"))["run"] == runs(project)[-1].id
    assert "| faster" in (out / "proposal.md").read_text("utf-8")
    assert "+++ b/baselines/" in (out / "proposal.patch").read_text("utf-8")
    assert {path: path.read_bytes() for path in project.glob("baselines/**/*.json")} == stored
    code, told = night(project, PERF_SHARD="1/100000", PERF_TIME="10m")
    assert (code, "nothing was measured: ended with 0" in told) == (0, True), told
    # A report that is elsewhere, or could not be written, is no run that was cut short.
    by = (sys.executable, "-m", "perfsuite.cli", "nightly", "--perf-report=elsewhere")
    assert "when all was measured: perfsuite report 2" in night(project, *by)[1]
    # From a folder below the project's root, where the runs are.
    (project / "below" / "go").mkdir(parents=True)
    (project / "speeds.json").write_text('{"200": 0.5}', encoding="utf-8")
    assert night(project, FOLDER="below")[0] == 0
    assert "| faster" in (project / "below" / "perf-night" / "proposal.md").read_text("utf-8")


def test_a_wrong_setting_or_a_machine_in_use_is_told_before_anything_is_deleted(
    project: Path,
) -> None:
    kept = project / "perf-night" / "summary.md"
    kept.parent.mkdir()
    kept.touch()
    for name, value in (("PERF_DOCTOR", "stopp"), ("PERF_NIGHTS", "-1")):
        code, told = night(project, **{name: value})
        assert (code, kept.exists(), value in told) == (4, True, True)
    script = project / "python"
    script.write_text('#!/bin/sh\nexit "$DOCTOR"\n')
    script.chmod(0o755)
    bare = ("bash", str(ROOT / "perfsuite" / "nightly" / "nightly.sh"))
    for doctor, expected in (("20", 20), ("2", 21)):
        code, _ = night(project, *bare, PYTHON=str(script), DOCTOR=doctor, PERF_DOCTOR="stop")
        assert (code, runs(project)) == (expected, [])
