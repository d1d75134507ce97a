"""From outside: a folder that is not this checkout, with nothing but installed packages."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from citizens_data import PACK, RIGHT, WRONG
from installed import call, environment, install
from kept_folder import Fill

from perfsuite.packs.find import PackSource
from perfsuite.store.baselines import Baselines, Shipped, read_sku, shipped_by

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
USAGE_ERROR = 4

WHERE_SHIPPED = """
from perfsuite.store.baselines import shipped_by
from perfsuite.packs.find import discover
for each in shipped_by(discover(None, allow=["acme"])):
    for file in each.folder.rglob("*.json"):
        print(each.pack, file.relative_to(each.folder))
"""
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
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a pack file, an ordinary test and one with a quick look."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("tmp")))
    pytester.makepyfile(acme=PACK, test_ordinary=ORDINARY)
    pytester.mkdir("deep")
    (pytester.path / "deep" / "test_look.py").write_text(LOOK, encoding="utf-8")
    return pytester


def perf(folder: pytest.Pytester, *args: str, pack: str = "acme.py") -> pytest.RunResult:
    fast = ("--perf-device=fake", "--perf-processes=1")
    options = ("-p", "perfsuite.plugin", "--perf", f"--perf-pack={pack}", *fast)
    return folder.runpytest_subprocess(*options, *args)


def only(folder: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run the pack file alone; packs that happen to be installed stay out."""
    return perf(folder, "--perf-packs=acme", *args)


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line and " " not in line]


def test_ids_select_as_in_any_test_session(folder: pytest.Pytester) -> None:
    quiet = ("--collect-only", "-q")
    assert collected(only(folder, *quiet)) == [RIGHT, WRONG]
    assert collected(only(folder, *quiet, "--deselect", RIGHT)) == [WRONG]
    assert collected(only(folder, *quiet, "perf::test_variant")) == [RIGHT, WRONG]
    assert collected(only(folder, *quiet, RIGHT, WRONG, "-k", "double and 2")) == [WRONG]


def test_what_failed_last_runs_again(folder: pytest.Pytester) -> None:
    only(folder).assert_outcomes(passed=1, failed=1)
    only(folder, "--lf").assert_outcomes(failed=1, deselected=1)
    assert collected(only(folder, "--ff", "--collect-only", "-q")) == [WRONG, RIGHT]


def test_a_variant_runs_by_its_id_and_no_other(folder: pytest.Pytester) -> None:
    result = only(folder, RIGHT)
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["1 variant on Fake Device*"])
    nothing = only(folder, "perf::test_variant[acme.double[n=3]]")
    bare = folder.runpytest_subprocess("-p", "perfsuite.plugin", RIGHT)
    assert nothing.ret == bare.ret == USAGE_ERROR
    nothing.stderr.fnmatch_lines(["*not found: perf::test_variant?acme.double?n=3??"])
    bare.stderr.fnmatch_lines(["*acme.double*is a variant", "*add --perf"])


def test_only_what_is_named_is_imported_for_quick_looks(folder: pytest.Pytester) -> None:
    result = only(folder, "deep")
    result.assert_outcomes(passed=2, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*quick looks*no verdict*", "* us *host*deep/test_look.py::*"])
    assert not (folder.path / "imported").exists()


def test_a_fixture_may_hand_the_look_on(folder: pytest.Pytester) -> None:
    folder.makepyfile(
        test_handed="""
        import pytest
        @pytest.fixture
        def looked(perf): return perf(len, "abc")
        def test_handed(looked): assert looked.result == 3 and looked.runs
        @pytest.mark.usefixtures("perf")
        def test_used(): pass
        """
    )
    perf(folder, "test_handed.py").assert_outcomes(passed=2)


def make_pack_folder(folder: pytest.Pytester, source: str) -> Path:
    place = folder.mkdir("vendor")
    (place / source / "acme_made").mkdir(parents=True)
    (place / source / "acme_made" / "__init__.py").write_text(PACK, encoding="utf-8")
    (place / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.entry-points.perfsuite]\nacme = "acme_made"\n', "utf-8"
    )
    return place


@pytest.mark.parametrize(("source", "pack"), [("src", "./vendor/"), ("", "{}/vendor")])
def test_a_folder_is_a_pack(folder: pytest.Pytester, source: str, pack: str) -> None:
    make_pack_folder(folder, source)
    named = pack.format(folder.path)
    result = perf(folder, "--perf-packs=acme", "--collect-only", "-q", pack=named)
    assert collected(result) == [RIGHT, WRONG]


@pytest.mark.parametrize("pack", ["nothing.py", "deep"])
def test_what_is_no_pack_is_a_clear_error(folder: pytest.Pytester, pack: str) -> None:
    result = perf(folder, pack=pack)
    assert result.ret == USAGE_ERROR
    result.stderr.fnmatch_lines([f"*'{pack}' is no pack", "*where: /*", "*do: name a .py file*"])


@pytest.fixture
def shipped(folder: pytest.Pytester, fill: Fill) -> Path:
    """A pack folder that ships the baseline of a run; the shipped file."""
    baselines = make_pack_folder(folder, "") / "acme_made" / "baselines"

    def release() -> None:
        accept = ("--perf-select=n=1,pack=acme", "--perf-accept", "--perf-reason=release")
        perf(folder, *accept, pack="vendor").assert_outcomes(passed=1)
        (folder.path / "baselines").rename(baselines)
        shutil.rmtree(folder.path / ".perfsuite")

    fill(baselines, release)
    return baselines / "fake" / "acme.json"


def compared_with(folder: pytest.Pytester, *args: str) -> str:
    """Run the right variant of the pack folder; return what its verdict names as its source."""
    xml = "--junit-xml=junit.xml"
    result = perf(folder, "--perf-select=n=1,pack=acme", xml, *args, pack="vendor")
    result.assert_outcomes(passed=1)
    properties = ET.parse(folder.path / "junit.xml").iter("property")  # noqa: S314 - our own file
    told = {each.get("name"): each.get("value") for each in properties}
    return told.get("perf_compared_with") or ""


def test_a_pack_s_own_baseline_is_used_until_the_project_has_one(
    folder: pytest.Pytester, shipped: Path
) -> None:
    before = shipped.read_bytes()
    accept = ("--perf-accept", "--perf-reason=ours")
    assert compared_with(folder, *accept) == "baseline fake shipped by acme"
    assert shipped.read_bytes() == before
    assert b"ours" in (folder.path / "baselines" / "fake" / "acme.json").read_bytes()
    assert compared_with(folder) == "baseline fake"


def test_a_damaged_shipped_baseline_is_named_with_its_pack(
    folder: pytest.Pytester, shipped: Path
) -> None:
    shipped.write_text(shipped.read_text("utf-8")[:-20], "utf-8")
    result = perf(folder, "--perf-select=n=1,pack=acme", pack="vendor")
    assert result.ret == USAGE_ERROR
    result.stderr.fnmatch_lines(["*the pack 'acme' ships is not usable*", f"*where: {shipped}*"])


def test_a_shipped_baseline_of_another_product_is_left_out(
    folder: pytest.Pytester, shipped: Path
) -> None:
    sku = shipped.with_name("sku.json")
    sku.write_text(sku.read_text("utf-8").replace("Fake Device", "Other Device"), "utf-8")
    assert compared_with(folder) == ""
    result = perf(folder, "--perf-select=n=1,pack=acme", pack="vendor")
    result.stdout.fnmatch_lines(["*note: the baseline that acme ships is not used: *fake: *"])
    assert compared_with(folder).startswith("runs up to ")


def test_a_pack_ships_only_its_own_numbers(shipped: Path) -> None:
    roots = [Shipped("other", shipped.parents[1])]
    sku = read_sku(roots[0].folder / "fake")
    assert Baselines.load(roots, sku).stored == {}
    assert list(Baselines.load([replace(roots[0], pack="acme")], sku).stored) == [
        "acme.double[n=1]"
    ]


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        ("module:acme@{}", "acme/baselines"),
        ("module:acme:hooks@{}", "acme/baselines"),
        ("module:acme.inner@{}", "acme/inner/baselines"),
        ("module:acme.inner.hooks:Pack@{}", "acme/inner/baselines"),
        ("module:acme.hooks@{}", "acme/baselines"),
        ("module:bare@{}", ""),
        ("module:nothing_of_this_name@", ""),
        ("module:@{}", ""),
        ("file:{}/acme/hooks.py", ""),
    ],
)
def test_shipped_baselines_lie_in_the_package(tmp_path: Path, origin: str, found: str) -> None:
    for name in ("acme/baselines", "acme/inner/baselines", "bare"):
        (tmp_path / name).mkdir(parents=True)
    pack = PackSource(name="acme", origin=origin.format(tmp_path))
    assert shipped_by([pack]) == ((Shipped("acme", tmp_path / found),) if found else ())


# Below: the packages as pip installs them.


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("outside"))


def test_a_new_pack_is_installed_and_runs_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    call(str(python.with_name("perfsuite")), "new-pack", "acme", cwd=tmp_path)
    numbers = tmp_path / "acme-perf" / "acme_perf" / "baselines" / "some-gpu" / "runs"
    numbers.mkdir(parents=True)
    (numbers / "1.json").write_text("{}", encoding="utf-8")
    install(python, tmp_path / "acme-perf")
    options = ("--perf", "--perf-device=cpu", "--perf-packs=acme", "--perf-processes=1")
    # Whatever else runs on these cores disturbs: then it is measured again, as a person would.
    for attempt in range(4):
        empty = tmp_path / f"empty{attempt}"
        empty.mkdir()
        said = call(str(python), "-m", "pytest", *options, "-v", cwd=empty)
        if "disturbed" not in said:
            break
    variant = "perf::test_variant[acme.softmax[rows=1024,cols=1000,impl={}]]"
    outcomes = {"eager": "PASSED", "torch": "PASSED", "triton": "SKIPPED"}
    for impl, outcome in outcomes.items():
        assert f"{variant.format(impl)} {outcome}" in said
    assert "2 new, 1 skipped" in said
    installed = call(str(python), "-c", WHERE_SHIPPED, cwd=empty)
    assert installed.splitlines() == ["acme some-gpu/runs/1.json"]
    assert len(list(empty.glob("reports/*/index.html"))) == 1
    assert len(list(empty.glob(".perfsuite/runs/*.jsonl"))) == 1
