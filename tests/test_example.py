"""The committed example report is what its run file renders to."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.report.book import read
from perfsuite.report.render import render
from perfsuite.runs import load_run
from perfsuite.yardstick import find_yardstick

EXAMPLE = Path(__file__).parents[1] / "reports" / "example"


def test_example_is_rendered_from_its_run(tmp_path: Path) -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    yardstick = find_yardstick([EXAMPLE / "baselines"], tmp_path, run=run)
    page = render(read(run, baselines=yardstick.entries, source=yardstick.source))
    if page != (EXAMPLE / "index.html").read_text(encoding="utf-8"):
        (EXAMPLE.parent / "actual.html").write_text(page, encoding="utf-8")
        pytest.fail(
            "reports/example/index.html differs from what its run renders to; look at "
            "reports/actual.html and copy it over if it is right"
        )


def test_example_shows_a_change_and_its_two_clocks() -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    slower = [verdict for verdict in run.verdicts if verdict.word == "slower"]
    assert [verdict.confirmation for verdict in slower] == ["fresh processes"]
    change = slower[0].changes[0]
    assert change.theta > change.time_change > 0
    assert run.facts.name == "NVIDIA H200"
