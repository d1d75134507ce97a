"""The pytest plugin in real inner sessions, on the fake device."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import scipy.special
from against_data import commit, git
from citizens_data import ROOT, citizen_in
from citizens_data import perf as perf_alone

from perfsuite import plugin
from perfsuite.explain import trace
from perfsuite.history import store
from perfsuite.model import Pack, Policy
from perfsuite.plugin import PerfSession
from perfsuite.run.config import Config
from perfsuite.store.runs import load_run
from perfsuite.workers.units import Panels

pytest_plugins = ["pytester"]

# An inner session in this process forgets what it is the first to import, and numpy can be
# imported only once.
KEPT = (scipy.special, trace, store)
USAGE_ERROR, CHANGED = 4, 14
perf = partial(perf_alone, alone=False)

PACK = '''
import perfsuite
from perfsuite import Claim, Workload

def workload(ctx, time_us, factor=2):
    def double(values):
        ctx.spend(time_us)
        return [factor * value for value in values]
    return Workload(
        fn=double,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )

@perfsuite.case(smoke={"impl": ["naive", "good"]}, source="made up")
def double(ctx, impl):
    """Double eight numbers."""
    return workload(ctx, 200.0 if impl == "naive" else 100.0)

@perfsuite.case(smoke={"n": [1]}, source="made up")
def wrong(ctx, n):
    """Return something else."""
    return workload(ctx, 100.0, factor=5)

@perfsuite.case(smoke={"n": [1]}, source="made up", needs=[perfsuite.cuda()])
def elsewhere(ctx, n):
    """Need what is not here."""

@perfsuite.hookimpl
def perf_cases():
    claim = Claim(
        name="good_is_faster", case="double", source="made up", by=1.5,
        faster={"impl": "good"}, than={"impl": "naive"},
    )
    return [double, wrong, elsewhere, claim]
'''
ONLY_DOUBLE = ("--perf-select", "case=double")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one pack file and one ordinary test, and no case modules."""
    return citizen_in(pytester, monkeypatch, acme=PACK)


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run a session in this process, whose modules it finds imported."""
    return project.runpytest_inprocess("-p", "perfsuite.plugin", "-p", "no:cacheprovider", *args)


def add_cases(project: pytest.Pytester, *names: str) -> None:
    project.makeini("[pytest]\nperf_cases = cases\n")
    folder = project.mkdir("cases")
    for name in names:
        text = (ROOT / "cases" / "test_other.py").read_text(encoding="utf-8")
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def test_an_ordinary_session_runs_ordinary_tests_and_imports_nothing_heavy(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cases(project, "test_other")
    heavy = "torch numpy scipy jinja2 rich sqlalchemy perfsuite.packs.load"
    project.makepyfile(
        test_light=f"""
        import sys
        def test_light(perf):
            look = perf(lambda x, *, more: x + more, 2, more=1)
            assert (look.result, look.runs, look.time_us == look.time_us) == (3, 0, False)
            assert not set({heavy.split()!r}) & set(sys.modules)
        """
    )
    project.runpytest_subprocess("-p", "perfsuite.plugin").assert_outcomes(passed=2)
    project.mkdir("sub")
    for named, start in (("cases/test_other.py", "."), ("../cases/test_other.py", "sub")):
        monkeypatch.chdir(project.path / start)
        result = run(project, named)
        assert result.ret == USAGE_ERROR
        result.stderr.fnmatch_lines(["*cases/test_other.py is a case module", "*add --perf"])


@pytest.mark.parametrize("words", [["--perf-tier", "nightly"], ["--perf-tier=nightly"]])
def test_an_option_of_ours_without_perf_is_refused(
    project: pytest.Pytester, words: list[str]
) -> None:
    result = run(project, *words)
    assert result.ret == USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-tier*", "*add --perf"])


def test_servers_start_while_packs_are_listed_and_end_before_items_run(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def noted(word: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any) -> Any:
            said.append(word)
            return act(*args)

        return told

    monkeypatch.setattr(Panels, "begin", noted("begin", Panels.begin))
    monkeypatch.setattr(Panels, "close", noted("close", Panels.close))
    monkeypatch.setattr(Config, "chosen", noted("list", Config.chosen))
    project.makepyfile(test_look="def test_look(perf): assert perf(int).runs")
    monkeypatch.setattr(plugin, "take_look", noted("look", plugin.take_look))
    for given, expected in (
        # First what measures nothing.
        (["--collect-only"], ["list"]),
        (["."], ["begin", "list", "close", "look"]),
        (["--perf-packs=nowhere.py"], ["begin", "list", "close"]),
    ):
        said.clear()
        perf(project, *given, *ONLY_DOUBLE)
        assert list(dict.fromkeys(said)) == expected, given
        assert (project.path / ".perfsuite").exists() is ("close" in said)


def test_collecting_takes_variants_only_and_measures_nothing(project: pytest.Pytester) -> None:
    result = perf(project, "--collect-only", "-q")
    lines = [line for line in result.outlines if line.startswith("perf::")]
    assert lines == [
        "perf::test_variant[acme.double[impl=naive]]",
        "perf::test_variant[acme.double[impl=good]]",
        "perf::test_variant[acme.wrong[n=1]]",
        "perf::test_variant[acme.elsewhere[n=1]]",
        "perf::test_claim[acme.double:good_is_faster[]]",
    ]
    assert "test_ordinary" not in result.stdout.str()
    assert not (project.path / ".perfsuite").exists()


@pytest.mark.parametrize("others", ["test_other", ""])
def test_each_pack_belongs_to_one_case_module(project: pytest.Pytester, others: str) -> None:
    add_cases(project, *filter(None, ("test_acme", others)))
    project.makepyfile(rest=PACK)
    # Named twice, options add up.
    result = perf(project, "--perf-packs=rest.py", "--collect-only", "-q", *ONLY_DOUBLE)
    lines = [line.partition("[")[::2] for line in result.outlines if "::" in line]
    homes = {"acme": "cases/test_acme.py", "rest": f"cases/{others}.py" if others else "perf"}
    assert {(name.partition(".")[0], where) for where, name in lines} == {
        (pack, f"{home}::test_{kind}")
        for pack, home in homes.items()
        for kind in ("variant", "claim")
    }
    assert len(lines) == 6


def test_a_run_reports_each_variant_as_it_ended(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = project.path / "step.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    result = perf(project, "--junit-xml", "junit.xml", "-v", "-rA")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "wrong: output differs from the reference: 8 of 8 elements are wrong, *",
            "  again *pytest --perf --perf-select 'acme.wrong?n=1?' *--perf-device=fake*",
            "4 variants on *: 1 wrong, 2 new, 1 skipped",
            "  acme.wrong?n=1?: wrong; fails",
            "      output differs *",
            "report: reports/*/index.html",
            # The line of the case's decorator, in the pack's file.
            "::error file=acme.py,line=20,title=acme.wrong[[]n=1[]]%3A wrong; fails::*",
        ]
    )
    assert step.read_text("utf-8").startswith("### ❌ acme.wrong")
    cases = list(ET.parse(project.path / "junit.xml").iter("testcase"))  # noqa: S314 - our own
    spent = {
        each.get("value"): case.get("time")
        for case in cases
        for each in case.iter("property")
        if each.get("name") == "perf_wall_s"
    }
    assert len(spent) == 4
    assert all(float(time or 0) >= float(own or 0) - 1e-3 for own, time in spent.items())
    told = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in cases
    }
    assert told["test_variant[acme.double[impl=good]]"]["perf_verdict"] == "new"
    wrong = told["test_variant[acme.wrong[n=1]]"]
    assert (wrong["perf_status"], (wrong["perf_reason"] or "")[:14]) == ("wrong", "output differs")
    assert told["test_claim[acme.double:good_is_faster[]]"]["perf_claim"] == "held"
    # The summary is last, whatever pytest says.
    lines = result.outlines
    start = next(index for index, line in enumerate(lines) if "= perfsuite =" in line)
    assert lines[start + 1].startswith("4 variants on ")
    own = [line for line in lines[start:] if not line.startswith("=")]
    assert not any(line.startswith(("FAILED", "PASSED", "SKIPPED")) for line in own)
    assert any("acme.double[impl=good]" in line and "new 100 us" in line for line in lines)


def test_help_is_shown_with_perf_too(project: pytest.Pytester) -> None:
    perf(project, "-h").stdout.fnmatch_lines(["*--perf-tier=*"])


def test_a_second_run_is_compared_with_the_first(project: pytest.Pytester) -> None:
    result = perf(project, *ONLY_DOUBLE)
    result.assert_outcomes(passed=3)
    assert "history" not in result.stdout.str()
    # Of another size: a file of the same second and size would count as the one that was compiled.
    project.makepyfile(acme=PACK.replace("else 100.0", "else 120.00"))
    file = project.path / "junit.xml"
    # What fails behind a variant by the project's own is pytest's to tell.
    own = "def own(request): yield; assert 'naive' not in request.node.name"
    project.makeconftest(f"import pytest\n@pytest.fixture(autouse=True)\n{own}")
    result = perf(project, *ONLY_DOUBLE, f"--junitxml={file}")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_variant?acme.double?impl=naive??*"])
    result.stdout.fnmatch_lines(["2 variants on *: 1 slower, 1 same", "compared with *run*"])
    result.stdout.fnmatch_lines(["  slower * acme.double?impl=good?"])
    result.stdout.no_fnmatch_line("*FAILURES*")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    suite = ET.parse(file).getroot().find("testsuite")  # noqa: S314 - our own file
    assert suite is not None
    of_suite = {each.get("name") for each in suite.findall("properties/*")}
    assert of_suite >= {"perf_run", "perf_sku", "perf_outcome", "perf_compared_with"}
    case = suite.findall("testcase")[1]
    found = {each.get("name"): each.get("value") for each in case.findall("properties/*")}
    assert (found["perf_verdict"], found["perf_time_us_unit"]) == ("slower", "us")
    for name in ("", "_baseline", "_change", "_change_low", "_change_high", "_threshold", "_gate"):
        float(found[f"perf_time_us{name}"] or "")


def test_an_environment_that_changed_fails_with_a_code_of_its_own(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = "ctx.spend(time_us * float(os.environ.get('SLOWER', '1')))"
    pack = PACK.replace("ctx.spend(time_us)", slower)
    project.makepyfile(acme=f"import os\n{pack}")
    (project.path / ".gitignore").write_text("*\n!acme.py\n", encoding="utf-8")
    git(project.path, "init", "--quiet", "-b", "main")
    commit(project.path)
    select = ("--perf-select", "case=double", "-k", "test_variant")
    perf(project, *select).assert_outcomes(passed=2)
    monkeypatch.setenv("SLOWER", "1.1")
    perf(project, *select).assert_outcomes(passed=2)
    failing = perf(project, *select, "--perf-fail-on=environment")
    failing.assert_outcomes(failed=2)
    failing.stdout.fnmatch_lines(["2 variants on *: 2 environment"])
    assert failing.ret == CHANGED


def test_a_broken_pack_fails_one_item_and_the_others_run(project: pytest.Pytester) -> None:
    project.makepyfile(sick="raise RuntimeError('no such compiler')")
    both = ("--perf-packs", "acme.py,sick.py")
    # Nothing else of ours is a test, whatever names a project gives its own.
    names = ("-o", "python_functions=*", "-o", "python_classes=*")
    result = perf(project, *both, *names, "--perf-check", *ONLY_DOUBLE)
    result.assert_outcomes(passed=2, skipped=1, failed=1)
    (run_file,) = project.path.glob(".perfsuite/runs/*")
    assert load_run(run_file).verdicts == ()
    result.stdout.fnmatch_lines(["*test_pack?sick?*", "*no such compiler*", "*sick.py*"])
    # What words choose may be in it, as in a file that pytest cannot read.
    chosen = perf(project, *both, "--perf-check", "-k", "naive or sick_case")
    chosen.assert_outcomes(passed=1, failed=1, deselected=4)


def test_a_claim_brings_variants_which_may_fail_the_run(project: pytest.Pytester) -> None:
    result = perf(project, "-k", "test_claim", "--perf-fail-on=new")
    result.assert_outcomes(passed=1, deselected=4)
    result.stdout.fnmatch_lines(["2 variants on *2 new*", "acme.double*, *: fails, *no test of *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_is_not_to_fail_is_not_said_to_fail(project: pytest.Pytester) -> None:
    result = perf(project, "-k", "wrong", "--perf-fail-on=slower")
    result.stdout.fnmatch_lines(["1 variant on *: 1 wrong", "  acme.wrong?n=1?: wrong"])
    (found,) = project.path.glob("reports/*/verdict.json")
    assert '"fails":true' not in found.read_text("utf-8")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--perf-time=soon"], "'soon' is no time: write 90s, 30m or 1h30m"),
        (["--perf-shard=3/2"], "'3/2' is no shard: write k/n"),
        (["--perf-shard=1"], "'1' is no shard: write k/n"),
        (["--perf-select", "colour=red"], "impl, n"),
        (["--perf-packs", "acme.py,acm"], "choose among acme"),
        (["--perf-packs="], "no pack is named"),
        (["--perf-packs", "missing.py"], "missing.py"),
        (["--perf-fail-on", "sluggish"], "slower"),
        (["-o", "perf_counters=maybe"], "perf_counters: "),
        (["--perf-processes", "0"], "'0'"),
        (["--perf-processes", "1001"], "'1001' is no whole number from 1 to 1000"),
        (["-operf_gate=lots"], "perf_gate: 'lots' is not"),
        (["--perf-tier", "huge"], "nightly"),
        (["--perf-device", "tpu"], "unknown device 'tpu'"),
        (["--perf-against=HEAD", "--perf-check"], "-against-env cannot go with --perf-check"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_clear_error(
    project: pytest.Pytester, args: list[str], told: str
) -> None:
    only = ("--perf-packs=acme.py", "--perf-device=fake")
    with pytest.raises(pytest.UsageError, match=re.escape(told)):
        PerfSession(configured(project, *only, *args)).pytest_collection()


def test_a_root_taken_from_an_option_is_refused(
    project: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(pytest.UsageError, match=r"pytest took .* for the project's root"):
        configured(project, "--perf-device", "fake", "--perf-report", elsewhere)
    configured(project, f"--perf-report={elsewhere}")


def configured(project: pytest.Pytester, *args: str) -> pytest.Config:
    """Return what pytest makes of the arguments of a session that perfsuite does not refuse."""
    config = project.parseconfig("-p", "perfsuite.plugin", "--perf", *args)
    plugin.pytest_configure(config)
    return config


def test_a_session_without_packs_says_so(project: pytest.Pytester) -> None:
    session = PerfSession(configured(project, "-operf_threshold=5", "-operf_gate=10%"))
    assert session.asked.settings.policy == Policy(threshold=0.05, gate=0.1)
    session.chosen = Config(root=project.path)
    assert "no pack found" in str(session.pytest_report_collectionfinish([]))
    session.chosen = Config(root=project.path, packs=(Pack(name="late", origin="", note="none"),))
    assert "note: pack late: none" in session.pytest_report_collectionfinish([])
