"""Features: each may be left out, and all else is as it was."""

from __future__ import annotations

import json
import sys

import pytest
from citizens_data import citizen_in

from perfsuite.hooks import FEATURES

pytest_plugins = ["pytester"]

# As if the line of one were not in perfsuite/hooks.py.
WITHOUT = """
import sys
from perfsuite import hooks
hooks.FEATURES = tuple(name for name in hooks.FEATURES if name != {left_out!r})
import pytest
status = pytest.main(["-p", "perfsuite.plugin", *sys.argv[1:]])
print("imported:", {left_out!r} in sys.modules)
sys.exit(status)
"""
# What the core still imports itself.
NEEDED = {"perfsuite.nightly"}


@pytest.mark.parametrize("left_out", FEATURES)
def test_a_run_does_without_any_feature(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    project = citizen_in(pytester, monkeypatch)
    script = project.makepyfile(without=WITHOUT.format(left_out=left_out))
    only = ("--perf-pack=acme.py", "--perf-packs=acme", "--perf-device=fake")
    result = project.run(sys.executable, script, "--perf", *only, "--perf-processes=1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"imported: {left_out in NEEDED}"])
    (said,) = project.path.glob("reports/*/verdict.json")
    words = [each["word"] for each in json.loads(said.read_text("utf-8"))["variants"]]
    assert sorted(words) == ["new", "wrong"]
