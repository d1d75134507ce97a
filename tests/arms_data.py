"""A repository whose pack imports the code under test, on the scripted device."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfsuite.model import Run, Verdict
from perfsuite.store.runs import list_runs, load_run

ROOT = Path(__file__).parents[1]
PACK = '''
import perfsuite
from perfsuite import Workload
import speed

@perfsuite.case(axes={"impl": ["one", "two"]}, source="made up")
def double(ctx, impl):
    """Double eight numbers."""
    def fn(values):
        ctx.spend(speed.US[impl])
        return [2 * value for value in values]
    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )

@perfsuite.hookimpl
def perf_cases():
    return [double]
'''
BEFORE, PLANTED = 'US = {"one": 100.0, "two": 100.0}\n', 'US = {"one": 100.0, "two": 130.0}\n'


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "made up")
    return git(folder, "rev-parse", "HEAD")


def project_in(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A repository with a pack that imports the code under test, unchanged since its commit."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("tmp")))
    git(pytester.path, "init", "--quiet", "-b", "main")
    ignored = ".perfsuite/\nreports/\ntmp/\n__pycache__/\n"
    (pytester.path / ".gitignore").write_text(ignored, encoding="utf-8")
    commit(pytester.path, acme=PACK, speed=BEFORE)
    return pytester


def perf(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    own = ("-p", "perfsuite.plugin", "-p", "no:cacheprovider", "--perf", "--perf-pack=acme.py")
    only = ("--perf-packs=acme", "--perf-device=fake")
    return project.runpytest_subprocess(*own, *only, *args)


def last(project: pytest.Pytester) -> Run:
    return load_run(list_runs(project.path / ".perfsuite")[0])


def page(project: pytest.Pytester) -> str:
    """The report of the last run; the runs before it have theirs beside it."""
    file = project.path / "reports" / last(project).id / "index.html"
    return file.read_text(encoding="utf-8")


def verdicts(run: Run) -> dict[str, Verdict]:
    return {each.variant.partition("impl=")[2].rstrip("]"): each for each in run.verdicts}


def words(run: Run) -> dict[str, str]:
    return {name: each.word.value for name, each in verdicts(run).items()}
