"""The workflows against GitHub's schema, and what no schema asks of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(FOLDER / name)
    return found


def steps(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in found["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one_by_githubs_schema(path: Path) -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    done = subprocess.run(
        [*command, "vendor.github-workflows", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_little_and_names_majors(path: Path) -> None:
    found = workflow(path.name)
    assert found["permissions"] == {"contents": "read"}
    uses = [step["uses"] for step in steps(found) if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", each) for each in uses)
    kept = [step for step in steps(found) if "upload-artifact" in step.get("uses", "")]
    assert kept
    assert all(step["if"] == "${{ always() }}" for step in kept)


def test_each_change_runs_what_a_developer_runs() -> None:
    found = workflow("ci.yml")
    assert {"push", "pull_request"} <= found["on"].keys()
    assert any(step.get("run") == ".ci/run" for step in steps(found))


def test_a_night_waits_for_the_gpu_keeps_its_state_and_alone_its_proposal_may_write() -> None:
    found = workflow("nightly.yml")
    assert {"schedule", "workflow_dispatch"} <= found["on"].keys()
    night = found["jobs"]["night"]
    assert night["concurrency"]["cancel-in-progress"] is False
    assert "matrix.machine" in night["concurrency"]["group"]
    checkout = night["steps"][0]
    assert checkout["with"]["clean"] is False
    assert any("examples/nightly.sh" in step.get("run", "") for step in night["steps"])
    writers = {name for name, job in found["jobs"].items() if "permissions" in job}
    assert writers == {"propose"}
    assert found["jobs"]["propose"]["permissions"] == {
        "contents": "write",
        "pull-requests": "write",
    }
    secret = [str(step) for step in steps(found) if "secrets." in str(step)]
    assert len(secret) == 1
    assert "secrets.PERFSUITE_HISTORY" in secret[0]


def test_what_the_workflows_and_the_script_are_told_exists() -> None:
    script = (ROOT / "examples" / "nightly.sh").read_text(encoding="utf-8")
    from perfsuite.run.config import OPTIONS

    named = re.findall(r"--perf-[a-z-]+", script)
    assert named
    assert set(named) <= OPTIONS.keys()
    environment = workflow("nightly.yml")["jobs"]["night"]["env"]
    assert all(name in script for name in environment)
