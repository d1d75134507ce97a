"""What a run leaves behind: history, report, acceptance, and the advice that follows."""

from __future__ import annotations

import html
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from options_data import OPTIONS
from report_data import STORY, baselines_of, run_of

from perfsuite.history.store import History
from perfsuite.model import Expected, Revision, Status, Word, because
from perfsuite.run.accept import accept
from perfsuite.run.config import Config
from perfsuite.run.expected import Basis
from perfsuite.run.finish import close, short
from perfsuite.run.run import Outcome

ACCEPT, SELECT = "perfsuite baseline accept", "pytest --perf --perf-select"
FIND = ("see why it got slower", "perfsuite why")
REPAIR = ("repair it", SELECT, "only if the change")


def outcome_of(folder: Path, *words: Word | Status) -> Outcome:
    story = tuple({told.word: told for told in STORY if told.word in words}.values())
    run, entries = structs.replace(run_of(story), claims=()), baselines_of(story)
    source, slug = "baseline nvidia-h200", "nvidia-h200" if Word.SAME in words else ""
    basis = Basis(
        expected={
            one.id: Expected(entry=entries.get(one.id), source=source, commit="c0ffee1", slug=slug)
            for one in run.variants
        }
    )
    return Outcome(basis.hold(run), folder / "x.jsonl", basis)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([Word.SAME], []),
        ([Word.SAME, Word.FASTER], ["to keep what is new or faster", ACCEPT]),
        ([Word.NEW, Word.SAME], ["to keep what is new or faster", ACCEPT]),
        ([Word.NEW, Status.SKIPPED], ["run again to compare", ACCEPT]),
        ([Word.SLOWER], [*FIND, "measure", SELECT, "see what", "git diff", *REPAIR, ACCEPT]),
        ([Status.SKIPPED], []),
        ([Status.DISTURBED, Word.SAME], ["end other work", SELECT]),
        ([Status.WRONG, Word.FASTER], ["repair the result", SELECT]),
    ],
)
def test_the_report_is_named_and_what_to_do_next(
    tmp_path: Path, words: list[Word | Status], told: list[str]
) -> None:
    outcome = outcome_of(tmp_path, *words)
    lines = close(outcome, replace(OPTIONS, report=tmp_path)).lines
    assert lines[0].endswith(f"{outcome.run.id}/index.html")
    assert lines[1].startswith("run: ")
    page = html.unescape((tmp_path / outcome.run.id / "index.html").read_text("utf-8"))
    for line, start in zip(lines[2:], told, strict=True):
        assert line.startswith((f"next: {start}", f"  {start}"))
        assert line.startswith("next") or f'class="copied">{line.strip()}</code></li>' in page


def test_what_another_sku_s_baselines_hold_is_no_reason_to_accept(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Word.NEW, Word.NEW, Word.SAME)
    expected = {
        one.id: structs.replace(one.expected, slug="nvidia-h200" if one.entry else "")
        for one in outcome.run.variants
    }
    run = Basis(expected=expected).hold(outcome.run)
    lines = close(replace(outcome, run=run), replace(OPTIONS, report=tmp_path)).lines
    assert any(line.startswith("next: run again to compare") for line in lines)


def test_what_is_unclear_is_told_how_it_is_decided(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Word.UNCLEAR)
    lines = close(outcome, replace(OPTIONS, report=tmp_path)).lines
    assert any(line.endswith(" --perf-against=c0ffee1") for line in lines)
    # What the clone lacks can be no side A, and has no diff.
    (verdict,) = outcome.run.verdicts
    lacking = structs.replace(verdict, reasons=(because("shallow", code="x", remedy="fetch"),))
    lacks = replace(outcome, run=outcome.run.having(verdicts=[lacking]))
    assert "c0ffee1" not in str(close(lacks, replace(OPTIONS, report=tmp_path)).lines)
    against = structs.replace(outcome.run, against=Revision(commit="abc", name="HEAD"))
    lines = close(replace(outcome, run=against), replace(OPTIONS, report=tmp_path)).lines
    assert "=12</code>" in (tmp_path / outcome.run.id / "index.html").read_text("utf-8")
    assert not any("=c0ffee1" in line or "accept" in line for line in lines)


def test_a_report_that_cannot_be_written_loses_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outcome = outcome_of(tmp_path, Word.SLOWER)
    closing = close(outcome, replace(OPTIONS, report=tmp_path / "file"))
    (note,) = outcome.steps.notes
    assert note.startswith("verdict.json not written, ")
    assert "index.html not written: cannot write the report" in note
    assert f"perfsuite report {outcome.run.id}" in note
    assert any(line.startswith("next: measure ") for line in closing.lines)
    assert not outcome.steps.tracebacks


def fail(*_: object, **__: object) -> None:
    raise TypeError("no such type\nin this world")


def test_a_run_that_cannot_be_reported_is_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfsuite.run.finish.read", fail)
    outcome = outcome_of(tmp_path, Word.SAME)
    assert close(outcome, keeping(tmp_path)).run_view is None
    assert outcome.steps.notes[0].startswith("report not made, ")
    with history_of(tmp_path) as history:
        assert history.series_of(outcome.run.variants[0].id)


def history_of(root: Path) -> History:
    return History("sqlite:///.perfsuite/history.db", root)


def keeping(root: Path) -> Config:
    url = "sqlite:///.perfsuite/history.db"
    return replace(OPTIONS, root=root, report=root / "reports", features={"perf_history": url})


def test_what_is_accepted_becomes_part_of_the_history(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Word.SAME)
    accept(outcome.run, tmp_path, reason="new driver", by="t")
    close(outcome, replace(keeping(tmp_path), baselines=(tmp_path,)))
    assert outcome.steps.are_done
    with history_of(tmp_path) as history:
        (move,) = history.series_of(outcome.run.variants[0].id, metric="time_us")[0].moves
    assert (move.run, move.reason) == (outcome.run.id, "new driver")


def test_without_sqlalchemy_the_history_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "perfsuite.history.store")
    outcome = outcome_of(tmp_path, Word.SAME)
    close(outcome, keeping(tmp_path))
    (note,) = outcome.steps.notes
    assert note.startswith("history not stored: install sqlalchemy; perfsuite history import ")


def test_a_path_is_told_whole_where_the_current_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert short(tmp_path / "page") == str(tmp_path / "page")
