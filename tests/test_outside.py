"""From outside: folders that are not this checkout, and new packs."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from citizens_data import PACK, RIGHT, ROOT, WRONG, citizen_in
from citizens_data import perf as perf_alone
from docs_data import unknown_in
from ruamel.yaml import YAML

from perfsuite.boundary import UsageError
from perfsuite.cli import commands, new_pack
from perfsuite.model import Pack, Tier
from perfsuite.packs.find import packs_at
from perfsuite.store.baselines import Baselines, Shipped, read_sku, shipped_by
from perfsuite.workers.process import load_catalogue

pytest_plugins = ["pytester"]

# What a session inside this process imports is forgotten at its end: numpy cannot come twice.
for module in ("run.finish", "report.terminal", "history.store"):
    import_module(f"perfsuite.{module}")
import_module("scipy.stats")

USAGE_ERROR = 4
perf = partial(perf_alone, alone=False)

ORDINARY = """
import pathlib
pathlib.Path("imported").touch()
text = "def test_no_look(perf): pass"
def test_ordinary(): assert 0
"""
LOOK = """
import sys
def test_look(perf):
    look = perf(sum, [1, 2])
    assert look.result == 3
    assert "torch" not in sys.modules
def test_left_out(): assert 0
import pytest
@pytest.fixture
def looked(perf): return perf(len, "abc")
def test_handed(looked): assert looked.result == 3 and looked.runs
@pytest.mark.usefixtures("perf")
def test_used(): pass
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a pack file, an ordinary test and one with a quick look."""
    citizen_in(pytester, monkeypatch, test_ordinary=ORDINARY)
    pytester.mkdir("deep")
    (pytester.path / "deep" / "test_look.py").write_text(LOOK, encoding="utf-8")
    return pytester


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line and " " not in line]


def test_ids_select_as_in_any_test_session(folder: pytest.Pytester) -> None:
    quiet = ("--collect-only", "-q")
    assert collected(perf(folder, *quiet, "perf::test_variant", "--deselect", RIGHT)) == [WRONG]
    assert collected(perf(folder, *quiet, RIGHT, WRONG, "-k", "double and 2")) == [WRONG]
    nothing = perf(folder, "perf::test_variant[acme.double[n=3]]")
    bare = folder.runpytest_inprocess("-p", "perfsuite.plugin", RIGHT)
    assert nothing.ret == bare.ret == USAGE_ERROR
    nothing.stderr.fnmatch_lines(["*not found: perf::test_variant?acme.double?n=3??"])
    bare.stderr.fnmatch_lines(["*acme.double*is a variant", "*do: add --perf"])


def test_what_failed_last_runs_again(folder: pytest.Pytester) -> None:
    result = perf(folder)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["2 variants on Fake Device*"])
    perf(folder, "--lf").assert_outcomes(failed=1, deselected=1)
    assert collected(perf(folder, "--ff", "--collect-only", "-q")) == [WRONG, RIGHT]


def test_only_what_is_named_is_imported_for_quick_looks(folder: pytest.Pytester) -> None:
    result = perf(folder, "deep", alone=True)
    result.assert_outcomes(passed=4, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*quick looks*no verdict*", "* us *host*deep/test_look.py::*"])
    assert not (folder.path / "imported").exists()


def make_pack_folder(folder: pytest.Pytester, source: str) -> Path:
    place = folder.mkdir("vendor")
    (place / source / "acme_made").mkdir(parents=True)
    (place / source / "acme_made" / "__init__.py").write_text(PACK, encoding="utf-8")
    (place / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.entry-points.perfsuite]\nacme = "acme_made"\n', "utf-8"
    )
    return place


def test_a_folder_is_a_pack_and_what_is_none_is_a_clear_error(folder: pytest.Pytester) -> None:
    place = make_pack_folder(folder, "src")
    result = perf(folder, "--collect-only", "-q", pack=f"{place}/")
    assert collected(result) == [RIGHT, WRONG]
    result = perf(folder, pack="./deep")
    assert result.ret == USAGE_ERROR
    result.stderr.fnmatch_lines(["*'deep' is no pack", "*where: /*", "*do: name a .py file*"])


def compared_with(folder: pytest.Pytester, *args: str) -> str:
    """Run the right variant of the pack folder; return what its verdict names as its source."""
    xml = "--junit-xml=junit.xml"
    result = perf(folder, "--perf-select=n=1,pack=acme", xml, *args, pack="./vendor")
    result.assert_outcomes(passed=1)
    properties = ET.parse(folder.path / "junit.xml").iter("property")  # noqa: S314 - our own file
    told = {each.get("name"): each.get("value") for each in properties}
    return told.get("perf_compared_with") or ""


def accept_newest(folder: pytest.Pytester) -> None:
    (*_, run) = sorted((folder.path / ".perfsuite" / "runs").glob("*.jsonl"))
    commands()(["baseline", "accept", str(run), "--reason=ours"], standalone_mode=False)


def test_a_pack_s_own_baseline_is_used_until_the_project_has_one(folder: pytest.Pytester) -> None:
    shipped = make_pack_folder(folder, "") / "acme_made" / "baselines"
    compared_with(folder)
    accept_newest(folder)
    (folder.path / "baselines").rename(shipped)
    shutil.rmtree(folder.path / ".perfsuite")
    file = shipped / "fake" / "acme.json"
    before = file.read_bytes()
    assert compared_with(folder) == "baseline fake shipped by acme"
    accept_newest(folder)
    assert file.read_bytes() == before
    own = folder.path / "baselines"
    assert b"ours" in (own / "fake" / "acme.json").read_bytes()
    assert compared_with(folder) == "baseline fake"
    # A pack ships only its own numbers.
    sku = read_sku(shipped / "fake")
    assert Baselines.load([Shipped("other", shipped)], sku).entries == {}
    assert list(Baselines.load([Shipped("acme", shipped)], sku).entries) == ["acme.double[n=1]"]
    # What it ships of another product is left out, what is damaged is named.
    shutil.rmtree(own)
    product = file.with_name("sku.json")
    product.write_text(product.read_text("utf-8").replace("Fake Device", "Other Device"), "utf-8")
    result = perf(folder, "--perf-select=n=1,pack=acme", pack="./vendor")
    result.stdout.fnmatch_lines(["*note: the baseline that acme ships is not used: *fake: *"])
    file.write_text(file.read_text("utf-8")[:-20], "utf-8")
    result = perf(folder, "--perf-select=n=1,pack=acme", pack="./vendor")
    assert result.ret == USAGE_ERROR
    result.stderr.fnmatch_lines(["*the pack 'acme' ships is not usable*", f"*where: {file}*"])


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        ("module:acme:hooks@{}", "acme/baselines"),
        ("module:acme.inner.hooks:Pack@{}", "acme/inner/baselines"),
        ("module:acme.hooks@{}", "acme/baselines"),
        ("module:bare@{}", ""),
        ("module:lone@{}", ""),
        ("module:@{}", ""),
        ("file:{}/acme/hooks.py", ""),
    ],
)
def test_shipped_baselines_lie_in_the_package(tmp_path: Path, origin: str, found: str) -> None:
    for name in ("acme/baselines", "acme/inner/baselines", "bare", "baselines"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("acme/__init__", "acme/hooks", "acme/inner/hooks", "bare/__init__", "lone"):
        (tmp_path / f"{name}.py").touch()
    pack = Pack(name="acme", origin=origin.format(tmp_path))
    assert shipped_by([pack]) == ((Shipped("acme", tmp_path / found),) if found else ())


# Below: new packs as their authors make them.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Its own tests are run by tests/test_docs.py, with the page that says how to write a case.
def test_a_new_pack_is_listed_without_torch_passes_linters_and_has_its_own_names(
    here: Path,
) -> None:
    assert not (new_pack("bare") / ".github").exists()
    place = new_pack("acme_gemm", Path("deep/down"), repo=True)
    assert place == Path("deep/down")
    (pack,) = load_catalogue(packs_at(place), tier=Tier.NIGHTLY, heavy=("torch", "triton"))
    assert (pack.error, pack.name) == ("", "acme_gemm")
    assert "acme_gemm.softmax[rows=4096,cols=8192,impl=triton]" in {v.id for v in pack.variants}
    files = [path for path in place.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    assert {"perf.yml", "README.md", "softmax_triton.py"} <= {path.name for path in files}
    assert not [path for path in files if "$" in path.read_text("utf-8").replace("${{", "")]
    project = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "acme-gemm-perf"
    assert project["entry-points"] == {"perfsuite": {"acme_gemm": "acme_gemm_perf"}}
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PERF", "GITHUB_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env |= {"PATH": path, "PERFSUITE_LOCKS": str(here)}
    env["PYTHONPATH"] = f"{place.absolute()}{os.pathsep}{ROOT}"
    jobs = YAML(typ="safe").load(place / ".github" / "workflows" / "perf.yml")["jobs"]
    runs = {name: [s["run"] for s in job["steps"] if "run" in s] for name, job in jobs.items()}
    ours = [line for each in runs.values() for line in each if "pytest" in line]
    assert [unknown_in(line[line.index("pytest") :]) for line in ours] == [[]] * 3
    install, *rest = runs["sound"]
    assert install.startswith("pip install ")  # what is installed here
    for step in rest:
        command = ("bash", "-e", "-c", step)
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, check=False)
        assert done.returncode == 0, (step, done.stdout)


@pytest.mark.parametrize(
    "name", ["", "Acme", "9lives", "acme-gemm", "a b", "../acme", "a__b", "_a", "sku", "a" * 41]
)
def test_a_bad_name_is_refused(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a pack's name"):
        new_pack(name)
    assert list(here.iterdir()) == []


def test_half_a_pack_is_never_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = Path.write_text

    def full_disk(path: Path, text: str, encoding: str) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(UsageError, match="No space left"):
        new_pack("acme")
    assert list(here.iterdir()) == []
