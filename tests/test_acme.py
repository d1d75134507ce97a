"""examples/acme-perf from its wheel: a device, metric, section and baselines of a pack's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installed import ROOT, call, environment, install, wheel_of

EXAMPLE = ROOT / "examples" / "acme-perf"
FAILED = 1
SHOWN = ("--perf", "--perf-device=acme", "--perf-packs=acme")
NAIVE, FUSED = (f"acme.softscale[n=10007,impl={impl}]" for impl in ("naive", "fused"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("acme")
    python = environment(place)
    install(python, wheel_of(EXAMPLE, place))
    return python


def measured(python: Path, folder: Path, *args: str, status: int = 0, **given: str) -> str:
    folder.mkdir()
    return call(str(python), "-m", "pytest", *SHOWN, *args, cwd=folder, status=status, **given)


def decision(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("reports/*/verdict.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def verdicts(folder: Path) -> dict[str, Any]:
    return {each["variant"]: each for each in decision(folder)["variants"]}


def page(folder: Path) -> str:
    (file,) = folder.glob("reports/*/index.html")
    return file.read_text("utf-8")


def test_its_cases_and_its_device_are_listed(python: Path, tmp_path: Path) -> None:
    command = str(python.with_name("perfsuite"))
    listed = call(command, "list", cwd=tmp_path)
    assert NAIVE in listed
    assert "acme.program[name=softscale_fused]" in listed
    told = call(command, "doctor", "--device", "acme", cwd=tmp_path)
    assert "Device acme of the pack acme: this machine has a1-0" in told
    assert "Acme A1 (acme)" in told
    assert "acme-a1" in told
    assert "Baselines: 8 variants of acme-a1" in told
    assert "right" in call(command, "run", FUSED, "--device", "acme", cwd=tmp_path)


def test_it_is_the_same_as_what_it_ships(python: Path, tmp_path: Path) -> None:
    said = measured(python, tmp_path / "run")
    assert "4 same" in said
    assert "compared with baseline acme-a1 shipped by acme" in said
    text = page(tmp_path / "run")
    assert "<h2>Acme A1: DMA engine</h2>" in text
    assert "bytes_per_burst <small>higher is better</small>" in text
    found = verdicts(tmp_path / "run")[FUSED]
    assert found["word"] == "same", found
    bursts = {"name": "bytes_per_burst", "unit": "B", "better": "higher", "value": 4002.8}
    (section,) = decision(tmp_path / "run")["sections"]
    assert section["title"] == "Acme A1: DMA engine"
    assert [FUSED, "20"] in section["rows"]
    assert {**bursts, "baseline": 4002.8} in found["metrics"]


def test_a_planted_slowdown_is_found_and_told_to_its_listener(python: Path, tmp_path: Path) -> None:
    log = tmp_path / "tickets"
    only = f"--perf-select={NAIVE}"
    said = measured(
        python, tmp_path / "run", only, status=FAILED, ACME_A1_SLOWDOWN="1.03", ACME_LOG=str(log)
    )
    assert "1 slower" in said
    assert log.read_text("utf-8").startswith(f"{NAIVE} slower ")
    found = verdicts(tmp_path / "run")[NAIVE]
    assert found["word"] == "slower"


def test_a_metric_of_its_own_fails_a_run_by_its_direction(python: Path, tmp_path: Path) -> None:
    (package,) = python.parents[1].glob("lib/python*/site-packages/acme_perf")
    program = package / "softscale_fused.a1"
    text = program.read_text("utf-8")
    program.write_text(text.replace("exp   v1", "store v1, y\nload  v1, y\nexp   v1"), "utf-8")
    said = measured(python, tmp_path / "run", f"--perf-select={FUSED}", status=FAILED)
    program.write_text(text, "utf-8")
    changes = verdicts(tmp_path / "run")[FUSED]["verdict"]["changes"]
    # 20 became 40 transfers; of what each carries more is better, so that half is worse.
    worse = {each["metric"]: each["theta"] for each in changes}
    assert worse["dma_bursts"] == 1.0
    assert worse["bytes_per_burst"] == 0.5
    assert "dma_bursts" in said


def test_states_of_the_device_are_not_compared(python: Path, tmp_path: Path) -> None:
    said = measured(python, tmp_path / "run", f"--perf-select={FUSED}", ACME_A1_POWER_CAP="200")
    assert "1 incomparable" in said


def test_the_units_of_a_machine_are_used(python: Path, tmp_path: Path) -> None:
    said = measured(python, tmp_path / "none", status=4, ACME_A1_UNITS="0")
    assert "this machine has no acme" in said
    measured(python, tmp_path / "run", "--perf-processes=1", ACME_A1_UNITS="2")
    (file,) = (tmp_path / "run").glob(".perfsuite/runs/*.jsonl")
    text = file.read_text("utf-8")
    assert all(f'"unit":"{unit}"' in text.replace(": ", ":") for unit in ("a1-0", "a1-1"))


def test_its_own_tests_pass(python: Path, tmp_path: Path) -> None:
    call(
        str(python), "-m", "pytest", str(EXAMPLE / "tests"), "-p", "no:cacheprovider", cwd=tmp_path
    )
