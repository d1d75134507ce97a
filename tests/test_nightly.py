"""The nightly script with real signals on the fake device, night after night."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from perfsuite.model import Run
from perfsuite.store.runs import list_runs, load_run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "nightly.sh"
VARIANTS = 4
# The third variant waits in its first build until a file lets it: a night that takes its time.
PACK = """
import os, pathlib, time
import perfsuite

@perfsuite.case(axes={"us": [100, 200, 300, 400]}, source="made up")
def double(ctx, us):
    '''Double numbers.'''
    if us == 300 and not pathlib.Path("go").exists():
        pathlib.Path("waits").touch()
        time.sleep(60)

    def fn(x):
        ctx.spend(us * float(os.environ.get("FACTOR", "1")) if us == 400 else us)
        return [2 * value for value in x]

    return perfsuite.Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda x: [value + value for value in x],
        wrong=lambda x: list(x),
    )

@perfsuite.hookimpl
def perf_cases():
    return [double]
"""


def settings(project: Path, text: str) -> None:
    """Write the project's settings."""
    (project / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{text}", encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "acme.py").write_text(PACK, encoding="utf-8")
    settings(tmp_path, "")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def environment(project: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PERF"))}
    return kept | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PERF_DEVICE": "fake",
        "PERF_DOCTOR": "warn",  # other work on this machine is none of the fake device's business
        "TMPDIR": str(project / "tmp"),
        "PERFSUITE_LOCKS": str(project),
        **more,
    }


def start(project: Path, **more: str) -> subprocess.Popen[str]:
    options = ("-p", "perfsuite.plugin", "-p", "no:cacheprovider", "--perf-processes=1")
    packs = ("--perf-pack=acme.py", "--perf-packs=acme")
    return subprocess.Popen(
        [SCRIPT, *options, *packs],
        cwd=project,
        env=environment(project, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def night(project: Path, **more: str) -> tuple[int, str]:
    with start(project, **more) as script:
        told, _ = script.communicate(timeout=120)
    return script.returncode, told


def stopped_night(project: Path, how: signal.Signals) -> tuple[int, str]:
    """Let a night run until a variant waits, then stop the script."""
    (project / "waits").unlink(missing_ok=True)
    with start(project) as script:
        deadline = time.monotonic() + 60
        while not (project / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        script.send_signal(how)
        told, _ = script.communicate(timeout=60)
    return script.returncode, told


def runs(project: Path) -> list[Run]:
    return [load_run(path) for path in reversed(list_runs(project / ".perfsuite"))]


def measured(run: Run) -> Counter[tuple[str, str]]:
    return Counter((result.variant, result.stage.value) for result in run.results)


def test_a_night_stopped_twice_loses_nothing_and_measures_nothing_twice(project: Path) -> None:
    kept: list[int] = []
    for how in (signal.SIGINT, signal.SIGTERM):
        code, told = stopped_night(project, how)
        assert (code, "start again" in told) == (2, True), told
        (run,) = runs(project)
        assert not run.finished
        kept.append(len(run.results))
    (project / "go").touch()
    code, told = night(project)
    assert code == 0, told
    (first,) = runs(project)
    assert f"resuming run {first.id}: {kept[1]} results kept" in told
    assert kept[0] == kept[1] < VARIANTS
    assert first.finished
    assert measured(first).total() == len(measured(first)) == VARIANTS
    code, told = night(project)
    assert code == 0, told
    _, second = runs(project)
    assert {verdict.word.value for verdict in second.verdicts} == {"same"}
    assert f"compared with runs up to {first.id}" in told
    out = project / "perf-night"
    assert json.loads((out / "verdict.json").read_text("utf-8"))["run"] == second.id
    left = {path.name for path in out.iterdir()}
    assert left >= {"doctor.txt", "junit.xml", "reports", "summary.md", f"{second.id}.jsonl.gz"}


def test_a_slower_night_says_so_in_its_exit_status_and_on_github(project: Path) -> None:
    (project / "go").touch()
    assert night(project)[0] == 0
    step = project / "step.md"
    code, told = night(project, FACTOR="1.1", GITHUB_STEP_SUMMARY=str(step))
    assert code == 1, told
    assert "1 slower" in step.read_text("utf-8")


@pytest.mark.parametrize(
    ("folder", "in_patch"), [("perf/accepted", "perf/accepted"), ("../accepted", "accepted")]
)
def test_the_proposal_is_of_the_folder_that_the_projects_ini_names(
    project: Path, folder: str, in_patch: str
) -> None:
    (project / "go").touch()
    settings(project, f"perf_baselines = ['{folder}']\n")
    assert night(project)[0] == 0
    accept = [sys.executable, "-m", "perfsuite.cli", "baseline", "accept"]
    subprocess.run(
        [*accept, runs(project)[-1].id, "--reason", "first"],
        env=environment(project),
        cwd=project,
        capture_output=True,
        check=True,
    )
    accepted = project / folder
    before = {path: path.read_bytes() for path in accepted.rglob("*.json")}
    assert before
    # A confirmed improvement does not wait for five nights.
    code, told = night(project, FACTOR="0.5")
    assert code == 0, told
    out = project / "perf-night"
    page, patch = ((out / name).read_text("utf-8") for name in ("proposal.md", "proposal.patch"))
    assert "acme.double[us=400]" in page.replace("\\", "")
    assert "| faster" in page
    assert f"+++ b/{in_patch}/" in patch
    assert {path: path.read_bytes() for path in accepted.rglob("*.json")} == before


@pytest.mark.parametrize(
    "wrong", [{"PERF_DOCTOR": "stopp"}, {"PERF_NIGHTS": "five"}, {"PERF_NIGHTS": "-1"}]
)
def test_a_wrong_setting_is_told_before_anything_is_deleted(
    project: Path, wrong: dict[str, str]
) -> None:
    kept = project / "perf-night" / "summary.md"
    kept.parent.mkdir()
    kept.touch()
    code, told = night(project, **wrong)
    assert code == 4
    assert f"not '{wrong.get('PERF_DOCTOR', 'warn')}'" in told
    assert kept.exists()
    assert runs(project) == []


@pytest.fixture
def stub(project: Path) -> Path:
    """A Python that answers as a doctor who sees a busy machine."""
    script = project / "python"
    script.write_text('#!/bin/sh\necho "Would spoil a comparison: load"\nexit "$DOCTOR"\n')
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(("doctor", "expected"), [("20", 20), ("2", 21)])
def test_a_machine_that_would_spoil_the_night_stops_it(
    project: Path, stub: Path, doctor: str, expected: int
) -> None:
    code, told = night(project, PYTHON=str(stub), DOCTOR=doctor, PERF_DOCTOR="stop")
    assert code == expected
    assert "Would spoil a comparison: load" in told
    assert runs(project) == []


def test_shards_of_a_night_are_merged_and_what_is_left_out_is_no_failure(project: Path) -> None:
    (project / "go").touch()
    for shard in ("1/3", "2/3", "3/3"):
        code, told = night(project, PERF_SHARD=shard, PERF_TIME="10m")
        assert code == 0, told
    found = runs(project)
    assert [str(run.shard) for run in found] == ["1/3", "2/3", "3/3"][-len(found) :]
    command = [sys.executable, "-m", "perfsuite.cli", "merge"]
    done = subprocess.run(
        [*command, *(run.id for run in found)],
        env=environment(project),
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    whole = runs(project)[-1]
    assert len(whole.verdicts) == VARIANTS
    assert (project / "reports" / whole.id / "index.html").exists()
    assert "4 variants on Fake Device: 0 unclear, 4 new" in done.stdout
    code, told = night(project, PERF_SHARD="1/100000")
    assert (code, "has no variant: nothing to do" in told) == (0, True), told
    assert "nothing was measured: ended with 0" in told
    # An earlier night's run is no result of this one.
    assert not [*(project / "perf-night").glob("*.jsonl.gz")]


def test_a_second_night_at_once_leaves_the_first_one_its_folder(project: Path) -> None:
    with start(project) as first:
        deadline = time.monotonic() + 60
        while not (project / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        doctor = (project / "perf-night" / "doctor.txt").stat().st_mtime_ns
        code, told = night(project)
        assert (code, told) == (21, "nightly: another night writes to perf-night\n")
        assert (project / "perf-night" / "doctor.txt").stat().st_mtime_ns == doctor
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
