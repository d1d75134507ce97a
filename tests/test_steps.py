"""What fails after the last measurement, in real inner sessions: the verdicts are told."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from citizens_data import PACK, citizen_in, perf

from perfsuite.run.run import Steps

pytest_plugins = ["pytester"]

# What a plugin of the project's own may do to perfsuite, and what perfsuite may do to itself.
BREAK = """
import pkgutil
import pytest

def boom(*_, **__):
    raise {error}

@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    for what in {what}:
        module, _, name = what.rpartition(".")
        setattr(pkgutil.resolve_name(module), name, boom)
"""
LISTENING = """
import pathlib
import perfsuite

@perfsuite.hookimpl
def perf_result(result, variant):
    (said,) = pathlib.Path("reports").glob("*/verdict.json")
    (run,) = pathlib.Path(".perfsuite/runs").iterdir()
    pathlib.Path("seen").write_text(said.read_text() + run.read_text().splitlines()[-1])

@perfsuite.hookimpl
def perf_verdict(verdict):
    raise ValueError("no ticket system")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one right and one wrong variant."""
    return citizen_in(pytester, monkeypatch)


def broken(
    project: pytest.Pytester,
    *what: str,
    args: tuple[str, ...] = (),
    error: str = "TypeError('mine')",
) -> pytest.RunResult:
    project.makeconftest(BREAK.format(what=what, error=error))
    return perf(project, *args)


BROKEN = {
    "perfsuite.report.files.environment": "index.html not written",
    "perfsuite.report.files.markdown_templates": "summary.md not written",
    "perfsuite.history.store.History.recent": "history not shown",
    "perfsuite.run.finish.Listeners": "packs were not asked for sections",
    "perfsuite.run.finish.commands_of": "no annotations",
    "perfsuite.run.finish.append_summary": "no summary of the step",
    "perfsuite.report.terminal._table": "no summary,",
    "perfsuite.report.files.suite_properties": "JUnit's suite lacks its properties",
    "perfsuite.store.runs.end_lines": "the run's file has no verdicts",
    "perfsuite.explain.trace.Tracing._needed": "kernels not traced",
}


def test_what_fails_after_the_measuring_costs_no_verdict(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "step.md"))
    result = broken(project, *BROKEN, args=("--junitxml=junit.xml",))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["wrong: output differs from the reference: *", "  again *"])
    result.stdout.fnmatch_lines(["*what failed after the measuring*", "Traceback *"])
    told = "; ".join(line for line in result.outlines if ": TypeError: mine" in line)
    assert [failed for failed in BROKEN.values() if failed not in told] == []
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    (said,) = project.path.glob("reports/*/verdict.json")
    told = json.loads(said.read_text("utf-8"))["variants"]
    assert sorted(each["word"] for each in told) == ["new", "wrong"]


def test_a_run_that_is_right_fails_for_an_error_of_ours_told_with_its_remedy(
    project: pytest.Pytester,
) -> None:
    hook = '@perfsuite.hookimpl\ndef perf_controller():\n    return "acme_controller"\n'
    project.makepyfile(acme=PACK + hook, acme_controller=LISTENING)
    error = (
        "__import__('perfsuite.boundary').boundary.StoreError('full', where='disk', remedy='room')"
    )
    what = "perfsuite.history.store.History.add"
    result = broken(project, what, args=("--perf-select", "n=1"), error=error)
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["history not stored: full; where: disk; do: room; perfsuite history import * later"]
    )
    said = result.stdout.str()
    assert "what failed after the measuring" not in said
    assert said.count("note: pack acme, perf_verdict: ValueError: no ticket system") == 1
    # Verdicts are on disk before a pack is told.
    seen = (project.path / "seen").read_text("utf-8")
    assert '"word":"new"' in seen
    assert '"finished"' in seen


# Ctrl-C, once, while the second variant is prepared: the first has ended. A third cannot run here.
THREE = PACK.replace("[1, 2]}", "[1, 2, 3]}, needs=[perfsuite.cuda().when(n=3)]")
SLOW = "import os, pathlib, signal\n" + THREE.replace(
    "    return perfsuite.Workload(",
    """    first, mark = pathlib.Path("first"), pathlib.Path("mark")
    first.exists() or first.write_text(str(n))
    if first.read_text() != str(n) and not mark.exists():
        mark.touch()
        os.kill(int(os.environ["SESSION_PID"]), signal.SIGINT)
        signal.pause()
    return perfsuite.Workload(""",
)


def test_the_command_to_go_on_works_as_it_is_told(project: pytest.Pytester) -> None:
    project.makeconftest("import os\nos.environ['SESSION_PID'] = str(os.getpid())")
    project.makepyfile(acme=SLOW)
    result = perf(project)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    at = result.outlines.index("perfsuite: 1 of 2 variants measured, none judged; go on:")
    command = shlex.split(result.outlines[at + 1])[1:]
    assert "--perf-device=fake" in command
    result = project.runpytest_subprocess(*command)
    result.stdout.fnmatch_lines(["note: resuming run *; results kept: 1"])
    result.assert_outcomes(passed=1, failed=1, skipped=1)


def test_ctrl_c_is_no_failed_step() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps().take("a", interrupted, None)


# Features may be left out, and all else is as it was.
# As if they had no line in perfsuite/hooks.py. None imports another: lint-imports sees to it.
WITHOUT = """
import sys
from perfsuite import hooks
left_out, hooks.FEATURES = hooks.FEATURES, ()
import pytest
status = pytest.main(["-p", "perfsuite.plugin", *sys.argv[1:]])
print("imported:", [name for name in left_out if name in sys.modules])
sys.exit(status)
"""


def test_a_run_does_without_any_feature(project: pytest.Pytester) -> None:
    script = project.makepyfile(without=WITHOUT)
    only = ("--perf-packs=acme.py", "--perf-device=fake")
    result = project.run(sys.executable, script, "--perf", *only, "--perf-processes=1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["imported: []"])
    (said,) = project.path.glob("reports/*/verdict.json")
    words = [each["word"] for each in json.loads(said.read_text("utf-8"))["variants"]]
    assert sorted(words) == ["new", "wrong"]
