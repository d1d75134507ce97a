"""pytest's own options and other plugins beside --perf: all do their work, no verdict moves."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from citizens_data import PACK, RIGHT, ROOT, loaded, perf, plain
from test_steps import project

from perfsuite.plugin import REFUSED, pytest_cmdline_main

__all__ = ["project"]  # a fixture
pytest_plugins = ["pytester"]

BENCHMARKS = "def test_fast(benchmark): assert benchmark(len, 'abc') == 3\n"
MANY = "import pytest\n@pytest.mark.parametrize('n', range(10_000))\ndef test_number(n): pass"
FLAKY = """
import pytest
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=2))
"""
# A project that has all that --perf must leave alone, in an ordinary session without warnings.
CONFTEST = """
import pytest
def pytest_configure(config):
    config.addinivalue_line("markers", "perf: the project's own")
@pytest.fixture
def perf(): return "the project's own"
"""
MINE = '''
import unittest, pytest
def answer():
    """
    >>> answer()
    42
    """
    return 42
@pytest.mark.perf
def test_fixture(perf): assert perf == "the project's own"
class TestUnit(unittest.TestCase):
    def test_unit(self):
        with self.subTest(n=1): self.assertEqual(answer(), 42)
'''


def test_a_project_s_own_tests_and_other_plugins_do_their_work(project: pytest.Pytester) -> None:
    project.makepyfile(acme=PACK.replace("[1, 2]", "[2, 3, 1]"), test_mine=MINE)
    project.makeconftest(CONFTEST)
    ordinary = plain(project, *loaded("xdist"), "-n", "1", "--doctest-modules", "test_mine.py")
    assert (ordinary.ret, ordinary.parseoutcomes()["passed"]) == (0, 3)
    others = loaded("pytest_metadata.plugin", "pytest_html.plugin", "pytest_jsonreport.plugin")
    shuffled = (*loaded("random_order.plugin"), "--random-order-seed=4")
    limit = (*loaded("pytest_timeout"), "--timeout=0.2")  # less than starting a worker takes
    files = ("--html=page.html", "--json-report", "--json-report-file=r.json")
    own = ("--maxfail=1", "--capture=sys", "-vv", "--tb=long", "--doctest-modules")
    result = perf(project, *others, *shuffled, *limit, *files, *own)
    # A limit of failures cuts no run short.
    result.stdout.fnmatch_lines(["3 variants on *: 2 wrong, 1 new"])
    told = {each["nodeid"]: each for each in json.loads(Path("r.json").read_text("utf-8"))["tests"]}
    right, wrong = told.values()
    assert (right["nodeid"], right["outcome"], wrong["outcome"]) == (RIGHT, "passed", "failed")
    assert {"perf_verdict": "new"} in right["user_properties"]
    assert {"perf_status": "wrong"} in wrong["user_properties"]
    assert "wrong: output differs from the reference" in Path("page.html").read_text("utf-8")


def test_an_error_of_collection_may_be_passed_over(project: pytest.Pytester) -> None:
    (project.mkdir("cases") / "test_broken.py").write_text("import nothing_of_it", "utf-8")
    text = (ROOT / "cases" / "test_other.py").read_text(encoding="utf-8")
    (project.path / "cases" / "test_other.py").write_text(text, encoding="utf-8")
    check = ("-o", "perf_cases=cases", "--perf-check")
    result = perf(project, *check, "--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=1, failed=1)


def test_ten_thousand_variants_are_collected_in_two_seconds_and_not_measured(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(acme=PACK.replace("[1, 2]", "list(range(10_000))"), of_pytest=MANY)
    none = "assert not {'torch', 'numpy', 'rich'} & {*sys.modules}"
    project.makeconftest(f"import sys\ndef pytest_unconfigure(): {none}")

    def spent(collect: Callable[..., pytest.RunResult], of: str, *args: str) -> float:
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        collect(project, *args, "--collect-only", "-qq").stdout.fnmatch_lines([f"{of}: 10000"])
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before

    # Beside others a core takes longer for the same, so pytest's own tests, which it collects in
    # one second on an idle core, are the clock; the least of three counts.
    of_pytest = min(spent(plain, *["of_pytest.py"] * 2) for _ in range(3))
    ours = min(spent(perf, "perf") for _ in range(3))
    assert not (project.path / ".perfsuite").exists()
    assert ours < 2 * max(1, of_pytest)


def test_a_test_that_is_run_again_stays_failed(project: pytest.Pytester) -> None:
    project.makeconftest(FLAKY)
    result = perf(project, *loaded("pytest_rerunfailures"), "--perf-check", "-W", "default")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2}
    assert len([*(project.path / ".perfsuite" / "runs").glob("*.jsonl")]) == 1


@pytest.mark.parametrize("option", [option for option, *_ in REFUSED])
def test_what_would_spoil_a_run_is_refused_with_the_reason(option: str) -> None:
    given = {"perf": True, option: 2}
    config: Any = SimpleNamespace(getoption=lambda name, default=None: given.get(name, default))
    (told,) = [words for words in REFUSED if words[0] == option]
    with pytest.raises(pytest.UsageError, match="--perf cannot run with ") as caught:
        pytest_cmdline_main(config)
    assert told[-1] in str(caught.value)


def test_benchmarks_do_not_run_and_that_is_said(project: pytest.Pytester) -> None:
    project.makepyfile(test_fast=BENCHMARKS + "def test_look(perf): assert perf(len, 'abc').runs")
    theirs = loaded("pytest_benchmark.plugin")
    said = "perfsuite: benchmark tests{} are left out; run them without --perf"
    result = perf(project, *theirs, "test_fast.py", "--benchmark-json=b.json")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines([said.format(" and --benchmark-json"), "*quick looks*no verdict*"])
