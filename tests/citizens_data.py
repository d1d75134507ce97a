"""A small project on the fake device, for sessions beside other plugins and pytest's options."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACK = '''
import sys
import perfsuite

@perfsuite.case(smoke={"n": [1, 2]}, source="made up")
def double(ctx, n):
    """Double eight numbers, wrong if n is 2."""
    print("a worker speaks")
    def launch(values):
        assert sys.gettrace() is None and sys.getprofile() is None
        assert sys.version_info < (3, 12) or not any(map(sys.monitoring.get_tool, range(6)))
        ctx.spend(100.0)
        return [(2 if n == 1 else 5) * value for value in values]
    return perfsuite.Workload(
        fn=launch,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )

@perfsuite.hookimpl
def perf_cases():
    return [double]
'''
RIGHT, WRONG = (f"perf::test_variant[acme.double[n={n}]]" for n in (1, 2))


def citizen_in(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, **files: str
) -> pytest.Pytester:
    """A project with a pack whose second variant is wrong, and an ordinary test, or others."""
    # A worker of our own tests' xdist is not to make these sessions its workers.
    workers = [name for name in os.environ if name.startswith("PYTEST_XDIST")]
    for name in (*workers, "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("tmp")))
    pytester.makepyfile(**{"acme": PACK, "test_ordinary": "def test_ordinary(): pass"} | files)
    # A session in this process finds the plugin imported already.
    warnings = "error\n  ignore::pytest.PytestAssertRewriteWarning"
    pytester.makeini(f"[pytest]\nfilterwarnings =\n  {warnings}\naddopts = --strict-markers\n")
    return pytester


def plain(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run a session without --perf."""
    return project.runpytest_subprocess("-p", "perfsuite.plugin", *args)


def perf(
    project: pytest.Pytester, *args: str, pack: str = "acme.py", alone: bool = True
) -> pytest.RunResult:
    """Measure a pack on the fake device; packs that happen to be installed stay out.

    The session has a process of its own, unless modules that this one imported are to serve it.
    """
    only = (f"--perf-packs={pack}", "--perf-device=fake", "--perf-processes=1")
    run = project.runpytest_subprocess if alone else project.runpytest_inprocess
    return run("-p", "perfsuite.plugin", "--perf", *only, *args)


def loaded(*modules: str) -> list[str]:
    """Return the options that load other plugins; skips where one is missing, fails in CI."""
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no {name}")
    return [word for name in modules for word in ("-p", name)]
