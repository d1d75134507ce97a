"""Other pytest plugins beside perfsuite: both do their work, and no figure or verdict moves."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET

import pytest
from citizens_data import RIGHT, USAGE_ERROR, WRONG, citizen_in, loaded, perf, plain

pytest_plugins = ["pytester"]

HTML = ("pytest_metadata.plugin", "pytest_html.plugin")
JSON = ("pytest_metadata.plugin", "pytest_jsonreport.plugin")
LAST = "2 variants on *: 1 wrong, 0 unclear, 1 new, 0 skipped"
BENCHMARKS = """
def test_fast(benchmark): assert benchmark(len, "abc") == 3
"""
FLAKY = """
import pytest
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=2))
"""
PROFILE = """
import sys, threading
def profile(*_): pass
sys.setprofile(profile)
threading.setprofile(profile)
"""
COVERAGE = "[run]\nparallel = true\npatch = subprocess\nsource = .\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one right and one wrong variant."""
    # A worker of our own tests' xdist is not to make these sessions its workers.
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    return citizen_in(pytester, monkeypatch)


def properties_of(file: str, project: pytest.Pytester) -> list[dict[str | None, str | None]]:
    cases = ET.parse(project.path / file).iter("testcase")  # noqa: S314 - our own file
    found = [[(p.get("name"), p.get("value")) for p in case.iter("property")] for case in cases]
    assert all(len(each) == len(dict(each)) for each in found)
    return [dict(each) for each in found]


def test_reports_of_other_plugins_have_the_figures(project: pytest.Pytester) -> None:
    args = loaded(*HTML, "pytest_jsonreport.plugin")
    files = ("--html=page.html", "--json-report", "--json-report-file=r.json", "--junitxml=j.xml")
    result = perf(project, *args, *files)
    result.stdout.fnmatch_lines([LAST])
    (right, wrong) = json.loads((project.path / "r.json").read_text("utf-8"))["tests"]
    assert (right["nodeid"], right["outcome"]) == (RIGHT, "passed")
    assert {"perf_verdict": "new"} in right["user_properties"]
    assert (wrong["nodeid"], wrong["outcome"]) == (WRONG, "failed")
    assert {"perf_status": "wrong"} in wrong["user_properties"]
    page = (project.path / "page.html").read_text("utf-8")
    assert "wrong: acme.double[n=2]" in page
    assert [case.get("perf_status") for case in properties_of("j.xml", project)] == ["ok", "wrong"]


def test_order_seed_and_loops_of_others_change_no_verdict(project: pytest.Pytester) -> None:
    order = loaded("random_order.plugin", "pytest_randomly")
    asynchronous = loaded("pytest_asyncio.plugin", "anyio.pytest_plugin", "xdist")
    ini = ("-o", "asyncio_default_fixture_loop_scope=function", "-o", "asyncio_mode=auto")
    shuffled = ("--random-order-seed=7", "-n", "0")
    result = perf(project, *order, *asynchronous, *ini, *shuffled)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([LAST])


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_time_limit_of_tests_is_none_of_a_run(project: pytest.Pytester, method: str) -> None:
    # Starting a worker alone takes longer than this.
    limit = ("--timeout=0.2", f"--timeout-method={method}", "--perf-check")
    perf(project, *loaded("pytest_timeout"), *limit).assert_outcomes(passed=1, failed=1)


def test_a_test_that_is_run_again_stays_failed(project: pytest.Pytester) -> None:
    project.makeconftest(FLAKY)
    rerun = loaded("pytest_rerunfailures")
    result = perf(project, *rerun, "--perf-check", "--junitxml=j.xml", "-W", "default")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2}
    told = [case.get("perf_status") for case in properties_of("j.xml", project)]
    assert told == ["ok", *["wrong"] * (len(told) - 1)]
    runs = list((project.path / ".perfsuite" / "runs").glob("*.jsonl"))
    assert len(runs) == 1


def test_workers_are_not_traced(project: pytest.Pytester) -> None:
    (project.path / ".coveragerc").write_text(COVERAGE, encoding="utf-8")
    project.makeconftest(PROFILE)
    result = perf(project, *loaded("pytest_cov.plugin"), "--cov=.", "--cov-report=", "--perf-check")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["wrong: acme.double*"])
    assert "gettrace" not in result.stdout.str()


@pytest.mark.parametrize(
    ("plugins", "args", "told"),
    [
        (["xdist"], "-n 2", "-n 0"),
        (["xdist"], "--dist load --tx 2*popen", "leave --tx out"),
        (["xdist", "xdist.looponfail"], "-f", "--lf"),
        (["pytest_codspeed.plugin"], "--codspeed", "one after the other"),
        (["pytest_benchmark.plugin"], "--benchmark-only", "benchmark.json"),
        (["pytest_rerunfailures"], "--reruns 2", "--reruns 0"),
    ],
)
def test_what_would_spoil_a_run_is_refused_with_the_reason(
    project: pytest.Pytester, plugins: list[str], args: str, told: str
) -> None:
    options = loaded(*plugins)
    # As a project would have it for its own tests.
    project.makeini(f"[pytest]\naddopts = {args}\n")
    result = perf(project, *options, "--perf-check")
    assert result.ret == USAGE_ERROR
    said = result.stderr.str() + result.stdout.str()
    assert "--perf cannot run with " in said
    assert told in said
    assert "Traceback" not in said
    assert not (project.path / ".perfsuite").exists()


def test_ordinary_tests_run_under_xdist_and_pytest_benchmark(project: pytest.Pytester) -> None:
    project.makepyfile(test_fast=BENCHMARKS)
    others = loaded("pytest_benchmark.plugin", "xdist")
    result = plain(project, *others, "-n", "1", "--benchmark-disable")
    result.assert_outcomes(passed=2)
    result = plain(project, *others, "--benchmark-json=b.json", "--benchmark-max-time=0.01")
    result.assert_outcomes(passed=2)
    assert len(json.loads((project.path / "b.json").read_text("utf-8"))["benchmarks"]) == 1


def test_every_option_can_be_sent_to_another_process(project: pytest.Pytester) -> None:
    # As xdist's --looponfail does in sessions without --perf, too.
    execnet = pytest.importorskip("execnet")
    given = ("--perf-report=x", "--perf-pack=acme.py", "--perf-repo=.", "--perf-gate=5%")
    for args in ((), given):
        # Who imported the plugin first, and so whether pytest rewrote it, is none of this test's.
        quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
        option = project.parseconfig("-p", "perfsuite.plugin", *quiet, *args).option
        own = {name: value for name, value in vars(option).items() if name.startswith("perf")}
        assert len(own) > 10
        execnet.gateway_base.dumps(own)


def test_benchmarks_do_not_run_and_that_is_said(project: pytest.Pytester) -> None:
    project.makepyfile(test_fast=BENCHMARKS + "def test_look(perf): assert perf(len, 'abc').runs")
    theirs = loaded("pytest_benchmark.plugin")
    said = "perfsuite: benchmark tests{} are left out; run them without --perf"
    result = perf(project, *theirs, "test_fast.py", "--benchmark-disable")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines([said.format("")])
    rest = ("--benchmark-autosave", "--benchmark-skip", "--benchmark-compare", "--perf-check")
    result = perf(project, *theirs, "--benchmark-json=b.json", *rest)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [said.format(" and --benchmark-json and --benchmark-autosave and --benchmark-compare")]
    )
    perf(project, *theirs, "--collect-only").stdout.no_fnmatch_line("*benchmark tests*")
