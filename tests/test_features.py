"""Features may be left out, and all else is as it was."""

from __future__ import annotations

import json
import sys

import pytest
from citizens_data import citizen_in

pytest_plugins = ["pytester"]

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


def test_a_run_does_without_any_feature(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = citizen_in(pytester, monkeypatch)
    script = project.makepyfile(without=WITHOUT)
    only = ("--perf-packs=acme.py", "--perf-device=fake")
    result = project.run(sys.executable, script, "--perf", *only, "--perf-processes=1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["imported: []"])
    (said,) = project.path.glob("reports/*/verdict.json")
    words = [each["word"] for each in json.loads(said.read_text("utf-8"))["variants"]]
    assert sorted(words) == ["new", "wrong"]
