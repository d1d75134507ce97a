"""The summary, each item's account, and progress, on a made-up run with every verdict."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import explained_data
import pytest
from options_data import OPTIONS
from report_data import FACTS, HEALTH, INSTANCES, STORY, Told, baselines_of, replace, run_of
from store_data import changed

from perfsuite.model import MachineShift, Result, Settings, Status, Word
from perfsuite.report.data import RunView, read
from perfsuite.report.terminal import Account, Ticker, accounts_of, costs, plain, summary


def told_of(word: Word | Status) -> Told:
    return next(told for told in STORY if told.word is word)


def run_view_of(*words: Word | Status, **changes: Any) -> RunView:
    story = tuple(map(told_of, words)) or STORY
    run = changed(run_of(story), **changes)
    return read(run, baselines=baselines_of(story), source="baseline nvidia-h200")


def account(word: Word | Status, **changes: Any) -> Account:
    found = accounts_of(run_view_of(word), replace(OPTIONS, **changes))
    return next(iter(found.values()))


def test_the_summary_counts_every_word_and_lists_what_needs_a_reader() -> None:
    first, source, *_ = summary(run_view_of(Word.SAME))
    assert first == "1 variant on NVIDIA H200: 0 unclear, 1 same, 0 skipped"
    assert source == "compared with baseline nvidia-h200"
    lines = list(summary(run_view_of()))
    assert "3 slower" in lines[0]
    assert not any(line.startswith(("  same", "  new", "  skipped")) for line in lines)
    assert "skipped 2: needs arch sm_100a" in lines
    assert any(line.startswith("  broken") and "fused_softmax" in line for line in lines)
    assert any(line.startswith("note: the copy canary") for line in lines)
    at = next(index for index, line in enumerate(lines) if line.startswith("  slower"))
    assert lines[at].endswith("(+2.95 to +3.21 %)   compute.gemm[size=8192,impl=cublas]")
    assert lines[at + 1].startswith("      slower by +3.08%")


def test_of_many_items_ten_are_told_and_long_texts_are_cut() -> None:
    story = [replace(told_of(Word.SLOWER), axes={"n": n}) for n in range(200)]
    story.append(replace(told_of(Status.CRASHED), reason="word " * 900))
    run = replace(run_of(tuple(story)), claims=(), notes=("a note",) * 12)
    lines = list(summary(read(run, baselines={})))
    assert sum(line.startswith(("  slower", "  crashed")) for line in lines) == 10
    assert "  ... and 191 more: see the report" in lines
    assert lines[-1] == "note: 2 more: see the report"
    assert max(map(len, lines)) < 400
    assert all(line.isascii() for line in lines)


def test_what_is_unclear_is_told_with_the_load_of_others() -> None:
    (quiet,) = run_view_of(Word.UNCLEAR).variants
    process, loud = quiet.evidence[0], replace(HEALTH, foreign_percent=34.0)
    loaded = replace(process, blocks=(replace(process.blocks[0], health=loud),))
    results = tuple(replace(each, evidence=(loaded,)) for each in quiet.results)
    cause = replace(quiet, results=results).cause
    told = "load by others up to 34 %; from 6.3 % on a change would be found"
    assert plain(cause) == told
    assert plain(quiet.cause) == told.partition("; ")[2]


def test_a_shifted_machine_is_told_first_and_fails_the_run() -> None:
    shift = MachineShift(
        word=Word.SLOWER,
        reason="5 of 6 comparable variants are slower",
        moved=5,
        comparable=6,
        units=("a",),
        canaries=("memory.copy[]",),
        variants=(),
        fails=True,
    )
    run_view = run_view_of(Word.UNCLEAR, shift=shift, claims=())
    assert list(summary(run_view))[1] == "machine-shift: 5 of 6 comparable variants are slower"
    assert (run_view.fails, run_view.is_broken) == (True, False)
    assert run_view_of(Word.SLOWER, shift=shift, claims=()).is_broken


def test_what_was_not_measured_is_called_so() -> None:
    assert "1 not run" in next(iter(summary(run_view_of(Word.SAME, results=()))))


def test_a_failure_says_what_is_needed_to_act() -> None:
    text = account(Word.SLOWER).text
    assert text.startswith("slower +2.13 %: memory.stream[op=copy,n=268435456]\n")
    words = [line.split()[0] for line in text.splitlines()[1:]]
    assert words == ["metric", "baseline", "measured", "change", "limits", "reason", "again"]
    assert "threshold 0.25 %, gate 1.0 %" in text
    settings = Settings(processes=5, seed=7)
    again = {"device": "cpu", "pack": (Path("my pack.py"),), "settings": settings}
    tail = "--perf-device=cpu '--perf-pack=my pack.py' --perf-processes=5 --perf-seed=7"
    text = account(Word.SLOWER, **again).text
    assert "again     pytest --perf --perf-select 'memory.stream[op=copy,n=268435456]'" in text
    assert text.endswith(tail)
    assert "85 % of the copy ceiling" in account(Word.OVER_BUDGET).text
    traced = accounts_of(explained_data.explained((told_of(Word.SLOWER),)), OPTIONS)
    assert "\n  why       copy_rows" in next(iter(traced.values())).text
    claim = accounts_of(run_view_of(), OPTIONS)[INSTANCES[2].id]
    assert claim.fails
    assert "1.50x (chapter of fused_softmax)" in claim.text
    assert ("perf_ratio", 1.06) in claim.properties


@pytest.mark.parametrize(
    ("word", "fails", "skipped"),
    [
        *((word, True, False) for word in (Status.WRONG, Status.CRASHED, Status.ERROR)),
        *((word, False, True) for word in (Status.SKIPPED, Status.DISTURBED)),
        *((word, False, False) for word in (Word.SAME, Word.FASTER, Word.NEW, Word.UNCLEAR)),
    ],
)
def test_an_item_fails_is_skipped_or_passes_by_its_word(
    word: Word | Status, *, fails: bool, skipped: bool
) -> None:
    found = account(word)
    assert (found.fails, found.skipped) == (fails, skipped)
    if fails:
        assert found.text.startswith(f"{word.value}: ")
        assert "  again " in found.text
        assert not account(word, failing=frozenset({"disturbed"})).fails
    if skipped:
        assert found.text == run_view_of(word).variants[0].reason
    if isinstance(word, Word):
        assert ("perf_verdict", word.value) in found.properties
    assert account(Status.DISTURBED, failing=frozenset({"disturbed"})).fails


def test_the_cost_of_a_run_is_a_table_of_plain_text() -> None:
    run = replace(run_of(), wall_s=7.0, phases_s={"open": 2.0, "spin": 6.0})
    lines = list(costs(run, 1.0))
    assert lines[0] == "profile: 10 s on 1 device"
    assert "  spin             6.00 s      60 %  pacing" in lines
    assert all(line.isascii() for line in lines)


def test_progress_is_a_line_for_what_matters_or_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    with Ticker(lines.append) as ticker:
        ticker.planned(3, FACTS, 4.0)
        ticker.phase("a.b[n=1]", "check")
        for at, status in enumerate((Status.OK, Status.CRASHED, Status.OK), start=1):
            ticker.finished(Result(variant=f"a.b[n={at}]", status=status), at, 3)
        ticker.note("confirming 1")
    assert lines == [
        "perfsuite: 3 variants on NVIDIA H200, about 4.0 s",
        "[2/3] a.b[n=2]: crashed",
        "[3/3] a.b[n=3]: ok",
        "note: confirming 1",
    ]
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in (("COLUMNS", "200"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with Ticker(print) as ticker:
        ticker.planned(1, FACTS, 0.0)
        ticker.phase("w.fail[how=x]", "\x1b]0;mine\x07" + "check" * 100)
    assert "w.fail[how=x]" in screen.getvalue()
    assert "\x1b]0;" not in screen.getvalue()
    assert "check" * 5 not in screen.getvalue()


@pytest.mark.parametrize("line", ["::stop-commands::x", "\u3000 ::error::x", "a ##[error]x"])
def test_a_terminal_and_a_workflow_obey_no_worker(line: str) -> None:
    story = (replace(told_of(Status.CRASHED), reason=f"\x1b[2J\x07\x9bfirst\n{line}"),)
    run = replace(run_of(story), claims=())
    spoken = tuple(replace(each, output=f"{line}\n  {line}") for each in run.results)
    run_view = read(run.having(results=spoken), baselines={})
    (found,) = accounts_of(run_view, OPTIONS).values()
    lines = [*found.text.splitlines(), *summary(run_view)]
    assert sum(line.rsplit("::", maxsplit=1)[-1][-6:] in each for each in lines) >= 3
    assert not any(each.strip().startswith("::") or "##[" in each for each in lines)
    assert not any({"\x1b", "\x07", "\x9b"} & {*each} for each in lines)
    assert plain("a\tb\nc\rd") == "a\tb\nc?d"
