"""pytest's own options beside --perf, and what projects do that perfsuite must not disturb."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from citizens_data import PACK, RIGHT, ROOT, WRONG, citizen_in, listed, perf, plain

pytest_plugins = ["pytester"]

# Strict ids and markers, as far as this pytest knows them.
STRICT = ("-o", "strict=true") if pytest.version_tuple >= (9,) else ("--strict-markers",)
QUIET = ("--collect-only", "-q")
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
ON_TOP = """
import pytest
@pytest.fixture
def perf(perf): return perf
def test_look(perf): assert perf(len, "abc").runs
"""
PLAIN_TYPES = """
def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        assert type(name) is str and type(value) in {str, int, float, bool}, (name, value)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one right and one wrong variant."""
    return citizen_in(pytester, monkeypatch)


def elsewhere(project: pytest.Pytester) -> Path:
    """Make a folder beside the project with an ini file of its own."""
    folder = project.mkdir("elsewhere")
    (folder / "other.ini").write_text("[pytest]\nstrict = true\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "args",
    [
        (*STRICT, "--import-mode=importlib", "-p", "no:cacheprovider"),
        ("-c", "elsewhere/other.ini", "--rootdir=.", "--confcutdir=elsewhere"),
        ("--import-mode=append", "-p", "no:doctest", "-p", "no:unittest", "-p", "no:junitxml"),
    ],
    ids=("strict", "other-ini", "few-plugins"),
)
def test_ids_are_the_same_wherever_the_settings_are(
    project: pytest.Pytester, args: tuple[str, ...]
) -> None:
    elsewhere(project)
    assert listed(perf(project, *QUIET, *args)) == [RIGHT, WRONG]


def test_a_root_elsewhere_takes_the_packs_of_that_root(project: pytest.Pytester) -> None:
    elsewhere(project)
    result = perf(project, "--rootdir=elsewhere", "--perf-check")
    result.assert_outcomes(passed=1, failed=1)
    assert (project.path / "elsewhere" / ".perfsuite").is_dir()
    assert not (project.path / ".perfsuite").exists()


@pytest.mark.parametrize("option", ["--setup-plan", "--setup-only", "--collect-only"])
def test_what_runs_no_test_measures_nothing(project: pytest.Pytester, option: str) -> None:
    assert perf(project, option).ret == 0
    assert not (project.path / ".perfsuite").exists()


def test_stepwise_stops_at_a_failure_and_goes_on_there(project: pytest.Pytester) -> None:
    project.makepyfile(acme=PACK.replace("[1, 2]", "[1, 2, 3]"))
    perf(project, "--perf-check", "--sw").assert_outcomes(passed=1, failed=1)
    project.makepyfile(acme=PACK.replace("[1, 2]", "[1, 2, 3]").replace("else 5", "else 2"))
    perf(project, "--perf-check", "--sw").assert_outcomes(passed=2, deselected=1)


def test_a_limit_of_failures_cuts_no_run_short(project: pytest.Pytester) -> None:
    project.makepyfile(acme=PACK.replace("[1, 2]", "[2, 3, 1]"))
    result = perf(project, "-x")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["3 variants on *: 2 wrong, 0 unclear, 1 new, 0 skipped"])
    perf(project).stdout.fnmatch_lines(["3 variants on *: 2 wrong, 0 unclear, 1 same, 0 skipped"])


def test_how_pytest_captures_and_tells_changes_no_result(project: pytest.Pytester) -> None:
    project.makeconftest(PLAIN_TYPES)
    for args, word in (
        (("-s", "--pdb", "-p", "no:cacheprovider"), "new"),
        (("--capture=sys", "-vv", "--no-header", "--tb=long", "--full-trace", "-l"), "same"),
        (("--capture=tee-sys", "-qq", "--tb=line", "--durations=2", "--setup-show"), "same"),
    ):
        result = perf(project, *args)
        assert result.ret in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
        result.stdout.fnmatch_lines([f"2 variants on *: 1 wrong, 0 unclear, 1 {word}, 0 skipped"])
        assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_session_without_a_terminal_still_fails(project: pytest.Pytester) -> None:
    result = perf(project, "-p", "no:terminal", "--perf-check")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not result.outlines


def test_a_project_s_own_fixture_marker_and_tests_are_left_alone(project: pytest.Pytester) -> None:
    project.makeconftest(CONFTEST)
    project.makepyfile(test_mine=MINE)
    result = plain(project, "--doctest-modules", "test_mine.py")
    assert (result.ret, result.parseoutcomes()["passed"]) == (0, 3)
    result = perf(project, "--doctest-modules", "test_mine.py", ".")
    result.assert_outcomes(deselected=4)
    assert not listed(perf(project, *QUIET, "-m", "perf"))


def test_a_fixture_over_ours_still_looks(project: pytest.Pytester) -> None:
    project.makepyfile(test_top=ON_TOP)
    result = perf(project, "test_top.py")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*quick looks*no verdict*"])


def test_an_error_of_collection_may_be_passed_over(project: pytest.Pytester) -> None:
    (project.mkdir("cases") / "test_broken.py").write_text("import nothing_of_it", "utf-8")
    text = (ROOT / "cases" / "test_other.py").read_text(encoding="utf-8")
    (project.path / "cases" / "test_other.py").write_text(text, encoding="utf-8")
    check = ("-o", "perf_cases=cases", "--perf-check")
    perf(project, *check).assert_outcomes(errors=1)
    result = perf(project, *check, "--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=1, failed=1)


def test_ten_thousand_variants_take_two_seconds_to_collect(project: pytest.Pytester) -> None:
    project.makepyfile(acme=PACK.replace("[1, 2]", "list(range(10_000))"))
    heavy = {"torch", "numpy", "scipy"}
    text = f"import sys\ndef pytest_unconfigure(): assert not {heavy} & set(sys.modules)"
    project.makeconftest(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    perf(project, "--collect-only", "-qq").stdout.fnmatch_lines(["perf: 10000"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
