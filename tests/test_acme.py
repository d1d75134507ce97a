"""examples/acme-perf from its wheel: a device, metric, section and baselines of a pack's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installed import ROOT, call, environment, install, wheel_of

EXAMPLE = ROOT / "examples" / "acme-perf"
FAILED = 1
SHOWN = ("-m", "pytest", "--perf", "--perf-device=acme", "--perf-packs=acme")
NAIVE, FUSED = (f"acme.softscale[n=10007,impl={impl}]" for impl in ("naive", "fused"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("acme")
    python = environment(place)
    install(python, wheel_of(EXAMPLE, place))
    return python


def decision(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("reports/*/verdict.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def verdicts(folder: Path) -> dict[str, Any]:
    return {each["variant"]: each for each in decision(folder)["variants"]}


def test_its_device_is_told(python: Path, tmp_path: Path) -> None:
    command = str(python.with_name("perfsuite"))
    told = call(command, "doctor", "--device", "acme", cwd=tmp_path)
    assert "Device acme of the pack acme: this machine has a1-0" in told
    assert "Acme A1 (acme)" in told
    assert "Baselines: 8 variants of acme-a1" in told


def test_it_is_the_same_as_what_it_ships(python: Path, tmp_path: Path) -> None:
    said = call(str(python), *SHOWN, cwd=tmp_path)
    assert "4 same" in said
    assert "compared with baseline acme-a1 shipped by acme" in said
    (page,) = tmp_path.glob("reports/*/index.html")
    text = page.read_text("utf-8")
    assert "<h2>Acme A1: DMA engine</h2>" in text
    assert "bytes_per_burst <small>higher is better</small>" in text
    found = verdicts(tmp_path)[FUSED]
    assert found["word"] == "same", found
    bursts = {"name": "bytes_per_burst", "unit": "B", "better": "higher", "value": 4002.8}
    (section,) = decision(tmp_path)["sections"]
    assert section["title"] == "Acme A1: DMA engine"
    assert [FUSED, "20"] in section["rows"]
    assert {**bursts, "baseline": 4002.8} in found["metrics"]


def test_what_is_slower_and_a_metric_that_moved_fail_a_run_and_its_listener_is_told(
    python: Path, tmp_path: Path
) -> None:
    (package,) = python.parents[1].glob("lib/python*/site-packages/acme_perf")
    program, log = package / "softscale_fused.a1", tmp_path / "tickets"
    text = program.read_text("utf-8")
    program.write_text(text.replace("exp   v1", "store v1, y\nload  v1, y\nexp   v1"), "utf-8")
    planted = {"ACME_A1_SLOWDOWN": "1.03", "ACME_LOG": str(log)}
    call(str(python), *SHOWN, "--perf-select=n=10007", cwd=tmp_path, status=FAILED, **planted)
    program.write_text(text, "utf-8")
    found = verdicts(tmp_path)
    assert found[NAIVE]["word"] == "slower"
    assert f"{NAIVE} slower " in log.read_text("utf-8")
    # 20 became 40 transfers; of what each carries more is better, so that half is worse.
    worse = {each["metric"]: each["theta"] for each in found[FUSED]["verdict"]["changes"]}
    assert worse["dma_bursts"] == 1.0
    assert worse["bytes_per_burst"] == 0.5


def test_its_own_tests_pass(python: Path, tmp_path: Path) -> None:
    call(
        str(python), "-m", "pytest", str(EXAMPLE / "tests"), "-p", "no:cacheprovider", cwd=tmp_path
    )
