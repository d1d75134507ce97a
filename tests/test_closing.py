"""What a run leaves behind: report, acceptance, and the advice that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from options_data import OPTIONS
from report_data import STORY, baselines_of, run_of

from perfsuite.closing import Closing, close
from perfsuite.model import Revision, Status, Word
from perfsuite.report.book import read
from perfsuite.request import Options
from perfsuite.runner import Outcome


def outcome_of(folder: Path, *words: Word | Status) -> Outcome:
    story = tuple(told for told in STORY if told.word in words)
    return Outcome(run_of(story), folder / "x.jsonl", baselines_of(story), "baseline nvidia-h200")


def closed(outcome: Outcome, options: Options) -> Closing:
    before, source = outcome.baselines, outcome.source
    return close(outcome, read(outcome.run, baselines=before, source=source), options)


def test_the_report_is_written_and_named(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Word.SAME)
    lines = closed(outcome, replace(OPTIONS, report=tmp_path / "reports")).lines
    page = tmp_path / "reports" / outcome.run.id / "index.html"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert any(line.startswith("report: ") and line.endswith("index.html") for line in lines)
    assert f"perfsuite baseline accept {outcome.run.id}" in lines[-1]


def test_a_first_run_is_told_to_run_again(tmp_path: Path) -> None:
    lines = closed(outcome_of(tmp_path, Word.NEW), replace(OPTIONS, report=tmp_path)).lines
    assert "next: run again to compare with this run, or accept it:" in lines


def test_what_is_unclear_is_told_how_it_is_decided(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Word.UNCLEAR)
    lines = closed(outcome, replace(OPTIONS, report=tmp_path)).lines
    assert f"  {outcome.run.command} --perf-against=REV" in lines
    against = replace(outcome.run, against=Revision(commit="abc", name="HEAD"))
    lines = closed(replace(outcome, run=against), replace(OPTIONS, report=tmp_path)).lines
    assert not any("--perf-against" in line for line in lines)


def test_what_fails_is_to_be_repaired_before_it_is_accepted(tmp_path: Path) -> None:
    lines = closed(outcome_of(tmp_path, Word.SLOWER), replace(OPTIONS, report=tmp_path)).lines
    assert any(line.startswith("next: repair what fails") for line in lines)


def test_a_run_without_verdicts_has_nothing_to_accept(tmp_path: Path) -> None:
    lines = closed(outcome_of(tmp_path, Status.SKIPPED), replace(OPTIONS, report=tmp_path)).lines
    assert not any("accept" in line for line in lines)


def test_what_is_not_right_keeps_a_run_from_being_accepted(tmp_path: Path) -> None:
    options = replace(OPTIONS, report=tmp_path, accept=True, reason="try", baselines=(tmp_path,))
    closing = closed(outcome_of(tmp_path, Word.SAME, Status.CRASHED), options)
    assert not closing.is_done
    assert closing.lines[0].startswith("report: ")
    assert closing.lines[-1].startswith("not accepted: ")
    assert "compute.softmax" in closing.lines[-1]
    assert not list(tmp_path.rglob("sku.json"))


def test_what_is_right_is_accepted(tmp_path: Path) -> None:
    options = replace(OPTIONS, report=tmp_path, accept=True, reason="try", baselines=(tmp_path,))
    closing = closed(outcome_of(tmp_path, Word.SAME), options)
    assert closing.is_done
    assert any(line.startswith("accepted: ") for line in closing.lines)
    assert list(tmp_path.rglob("sku.json"))


def test_a_report_that_cannot_be_written_loses_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outcome = outcome_of(tmp_path, Word.SLOWER)
    closing = closed(outcome, replace(OPTIONS, report=tmp_path / "file"))
    assert not closing.is_done
    assert "report: cannot write the report" in closing.lines[0]
    assert f"perfsuite report {outcome.run.id}" in closing.lines[0]
