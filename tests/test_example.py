"""The committed example report is what its run file renders to."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.report.data import read
from perfsuite.report.html import render_page
from perfsuite.run.expected import find_expected, source_of
from perfsuite.run.run import entries_in
from perfsuite.store.runs import load_run

EXAMPLE = Path(__file__).parents[1] / "reports" / "example"


def test_example_is_rendered_from_its_run(tmp_path: Path) -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    run = find_expected([EXAMPLE / "baselines"], tmp_path, run=run).hold(run)
    page = render_page(read(run, baselines=entries_in(run), source=source_of(run)))
    if page != (EXAMPLE / "index.html").read_text(encoding="utf-8"):
        (EXAMPLE.parent / "actual.html").write_text(page, encoding="utf-8")
        pytest.fail(
            "reports/example/index.html differs from what its run renders to; look at "
            "reports/actual.html and copy it over if it is right"
        )


def test_example_shows_two_versions_of_a_kernel() -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    slower = [verdict for verdict in run.verdicts if verdict.word == "slower"]
    assert len(slower) == 10
    assert {verdict.confirmation for verdict in slower} == {"fresh processes"}
    # The former version has other blocks where a map both reads and writes; torch's is no part.
    assert all("impl=cuda" in verdict.variant for verdict in slower)
    page = (EXAMPLE / "index.html").read_text(encoding="utf-8")
    assert "block 128\u00d71\u00d71 \u2192 256\u00d71\u00d71" in page
    assert run.facts.name == "NVIDIA H200"
