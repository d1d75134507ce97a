"""What the repository holds besides code is true: its workflows, and the tables of its packs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import baseline_run
import pytest
from docs_data import unknown_in
from readme_tables import BEGIN, differing_rows, stored_sku, table_of
from ruamel.yaml import YAML

from perfsuite.model import Pack, Tier
from perfsuite.packs.find import discover
from perfsuite.report import data
from perfsuite.run.config import OPTIONS
from perfsuite.store.baselines import read_all
from perfsuite.store.runs import list_runs, load_run
from perfsuite.workers.process import load_catalogue

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
CHECK = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
TABLED = sorted(
    path.parent.name for path in ROOT.glob("plugins/*/README.md") if BEGIN in path.read_text()
)


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(FOLDER / name)
    return found


def steps(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in found["jobs"].values():
        yield from job["steps"]


def test_the_workflows_are_some_by_githubs_schema() -> None:
    subprocess.run([*CHECK, "vendor.github-workflows", *WORKFLOWS], check=True)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_little_and_names_majors(path: Path) -> None:
    found = workflow(path.name)
    assert found["permissions"] == {"contents": "read"}
    uses = [step["uses"] for step in steps(found) if "uses" in step]
    known = r"actions/[a-z/-]+@v\d+|docker://rhysd/actionlint:\d+(\.\d+)+"
    assert all(re.fullmatch(known, each) for each in uses)
    kept = [step for step in steps(found) if "upload-artifact" in step.get("uses", "")]
    assert kept
    assert all(step["if"] == "${{ always() }}" for step in kept)


def test_the_template_for_gitlab_asks_for_what_a_night_needs() -> None:
    path = ROOT / "examples" / "gitlab-nightly.yml"
    subprocess.run([*CHECK, "vendor.gitlab-ci", path], check=True)
    found = YAML(typ="safe").load(path)
    night, propose = found["night"], found["propose"]
    assert night["variables"]["GIT_DEPTH"] == propose["variables"]["GIT_DEPTH"] == "0"
    assert (night["cache"]["when"], night["cache"]["paths"]) == ("always", [".perfsuite/"])
    assert night["artifacts"]["when"] == "always"
    assert night["artifacts"]["reports"] == {"junit": "perf-night/junit.xml"}
    assert any(line.endswith("perfsuite nightly") for line in night["script"])
    assert any("merge_request.create" in line for line in propose["script"])
    for line in (*night["script"], *propose["script"]):
        subprocess.run(["bash", "-n", "-c", line], check=True)


def test_each_change_runs_what_a_developer_runs() -> None:
    found = workflow("ci.yml")
    assert {"push", "pull_request"} <= found["on"].keys()
    assert any(step.get("run") == ".ci/run" for step in steps(found))


def test_a_night_waits_for_the_gpu_keeps_its_state_and_alone_its_proposal_may_write() -> None:
    found, script = workflow("nightly.yml"), ROOT / "perfsuite/nightly/nightly.sh"
    assert {"schedule", "workflow_dispatch"} <= found["on"].keys()
    night = found["jobs"]["night"]
    assert night["concurrency"]["cancel-in-progress"] is False
    assert "matrix.machine" in night["concurrency"]["group"]
    assert night["steps"][0]["with"]["clean"] is False
    assert any(step.get("run", "").endswith('perfsuite" nightly') for step in night["steps"])
    writers = {n: job["permissions"] for n, job in found["jobs"].items() if "permissions" in job}
    assert writers == {"propose": {"contents": "write", "pull-requests": "write"}}
    (secret,) = [str(step) for step in steps(found) if "secrets." in str(step)]
    assert "secrets.PERFSUITE_HISTORY" in secret
    # What they are told exists.
    assert set() < set(re.findall(r"--perf-[a-z-]+", script.read_text("utf-8"))) <= OPTIONS.keys()
    assert all(name in script.read_text("utf-8") for name in night["env"])
    assert night["env"]["PERF_DEVICE"] == "cuda", "a driver that broke makes no green night"
    lines = [line.strip() for step in steps(found) for line in step.get("run", "").splitlines()]
    ours = [line for line in lines if line.startswith(("perfsuite ", "pytest "))]
    assert len(ours) >= 2
    assert [unknown_in(line) for line in ours] == [[]] * len(ours)
    # What fails still keeps its state for the next night.
    kept = [step for step in steps(found) if "cache/" in step.get("uses", "")]
    saves = [step for step in kept if "cache/save@" in step["uses"]]
    assert len(kept) == 2 * len(saves) == 4
    assert all(step["if"] == "${{ always() }}" for step in saves)


@pytest.fixture(scope="module")
def packs() -> Mapping[str, Pack]:
    return {pack.name: pack for pack in load_catalogue(discover(ROOT), tier=Tier.FULL)}


def test_a_claim_across_cases_is_of_variants_that_do_the_same(packs: Mapping[str, Pack]) -> None:
    known = {each.id: each for pack in packs.values() for each in pack.variants}
    pairs = [(known[c.faster], known[c.than]) for pack in packs.values() for c in pack.claims]
    across = [(one, other) for one, other in pairs if one.case != other.case]
    assert {one.pack for one, _ in across} == {"blackwell", "compute", "hopper"}
    does = [{(o.case.regime, o.work.flops) for o in pair if o.work} for pair in across]
    assert all(len(each) == 1 for each in does)


@pytest.mark.parametrize("name", TABLED)
def test_the_table_in_the_readme_of_a_pack_is_not_stale(
    name: str, packs: Mapping[str, Pack]
) -> None:
    pack, root = packs[name], ROOT / "baselines"
    assert not pack.error
    readme = ROOT / "plugins" / name / "README.md"
    table = table_of(pack, root, stored_sku(readme, root), packs=tuple(packs.values()))
    assert differing_rows(readme, table) == []
    # Without figures, with others', and out of order it would be.
    head, line, first, second, *rest = table.splitlines(keepends=True)
    assert differing_rows(readme, table_of(pack, root / "none"))
    assert len(differing_rows(readme, "".join((head, line, second, first, *rest)))) == 2
    assert stored_sku(readme, root / "none") == ""


# What the linters are told of the packs is what there is.


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_import_contracts_know_every_pack() -> None:
    packs = {path.parent.name for path in ROOT.glob("plugins/*/perfsuite_*/__init__.py")}
    linted = read(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    assert set(linted) == {"perfsuite", *packs}


def test_every_pack_is_an_extra_and_has_one_entry_point() -> None:
    extra = read(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["packs"]
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        pack = read(path)["project"]
        assert pack["name"] == f"perfsuite-{path.parent.name}"
        assert pack["name"] in extra
        assert len(pack["entry-points"]["perfsuite"]) == 1, pack["name"]


def test_each_planted_fault_has_one_place_and_its_tests() -> None:
    paths = [path for path in (ROOT / "perfsuite").rglob("*") if path.is_file()]
    texts = [p.read_bytes().decode(errors="ignore") for p in paths if p.suffix != ".pyc"]
    for fault in read(ROOT / "tests/planted.toml")["fault"]:
        assert sum(text.count(fault["find"]) for text in texts) == 1, fault["id"]
        assert (ROOT / fault["tests"][0].partition("::")[0]).exists(), fault["id"]


def test_accepted_numbers_are_a_run_that_can_stand_beside_others(tmp_path: Path) -> None:
    baseline_run.main([slug := "nvidia-h100-80gb-hbm3", "--to", str(tmp_path)])
    (run,) = map(load_run, list_runs(tmp_path))
    entries = read_all(ROOT / "baselines" / slug)
    assert {one.id for one in run.variants} == {*entries}
    known = {name: each.metrics.get("time_us") for name, each in entries.items()}
    quiet = {name: each.center for name, each in known.items() if each and each.between < 0.05}
    times = {one.id: one.now() for one in data.read(run, baselines={}).ran if one.id in quiet}
    assert times == pytest.approx(quiet, rel=0.05)
    assert any(each.word == "held" for each in run.claims)
