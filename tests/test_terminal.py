"""The summary, each item's account, and progress, on a made-up run with every verdict."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import explained_data
import pytest
from msgspec import structs
from options_data import OPTIONS
from report_data import FACTS, HEALTH, STORY, Told, baselines_of, run_of

from perfsuite.model import ClaimInstance, MachineShift, Result, Status, Word
from perfsuite.report.data import Book, read
from perfsuite.report.terminal import Ticker, accounts_of, first_line, plain, summary

FAILING = OPTIONS.failing_statuses()


def book_of(*story: Told) -> Book:
    told = story or STORY
    run = run_of(tuple(told))
    return read(
        run, baselines=baselines_of(tuple(told)), source="baseline nvidia-h200", previous=None
    )


def told_of(word: Word | Status) -> Told:
    return next(told for told in STORY if told.word is word)


def account_text(word: Word | Status) -> str:
    (account,) = accounts_of(book_of(told_of(word)), OPTIONS).values()
    return account.text


def test_first_line_counts_every_word_and_always_unclear_and_skipped() -> None:
    assert first_line(book_of(told_of(Word.SAME))) == (
        "1 variant on NVIDIA H200: 0 unclear, 1 same, 0 skipped"
    )


def test_summary_lists_what_needs_a_reader_and_nothing_else() -> None:
    lines = list(summary(book_of()))
    assert "3 slower" in lines[0]
    assert "2 unclear" in lines[0]
    rows = [line for line in lines if line.startswith("  ")]
    assert any(row.startswith("  slower") and "+2.1" in row for row in rows)
    assert not any(row.startswith(("  same", "  new", "  skipped")) for row in rows)


def test_of_two_hundred_failures_ten_are_told_and_the_rest_counted() -> None:
    story = [replace(told_of(Word.SLOWER), axes={"n": n}) for n in range(200)]
    book = book_of(*story)
    lines = list(summary(replace(book, run=structs.replace(book.run, claims=()))))
    assert sum(line.startswith("  slower") for line in lines) == 10
    assert "  ... and 190 more: see the report" in lines
    assert all(line.isascii() for line in lines)


def test_long_texts_are_cut_and_a_few_skips_and_notes_told() -> None:
    told = replace(told_of(Status.CRASHED), reason="word " * 900)
    book = book_of(told)
    book = replace(book, run=structs.replace(book.run, notes=("a note",) * 12))
    lines = list(summary(book))
    assert max(map(len, lines)) < 400
    assert lines[-1] == "note: 2 more: see the report"


def test_a_change_has_its_cause_below() -> None:
    lines = list(summary(book_of(told_of(Word.SLOWER))))
    row = next(index for index, line in enumerate(lines) if line.startswith("  slower"))
    assert lines[row].endswith("memory.stream[op=copy,n=268435456]")
    assert "(+2.00 to +2.26 %)" in lines[row]
    assert lines[row + 1].startswith("      slower by +2.13%")


def test_what_is_unclear_is_told_with_the_load_of_others() -> None:
    book = book_of(told_of(Word.UNCLEAR))
    loud = structs.replace(HEALTH, foreign_percent=34.0)
    results = [
        structs.replace(
            result,
            evidence=tuple(
                structs.replace(
                    one, blocks=tuple(structs.replace(block, health=loud) for block in one.blocks)
                )
                for one in result.evidence
            ),
        )
        for result in book.run.results
    ]
    run = structs.replace(book.run, results=tuple(results))
    lines = list(summary(read(run, baselines=book.baselines)))
    (told,) = [line for line in lines if line.startswith("  unclear")]
    assert "load by others up to 34 %; from 6.3 % on a change would be found" in told
    calm = next(line for line in summary(book) if line.startswith("  unclear"))
    assert "load" not in calm


def test_no_control_character_reaches_the_terminal() -> None:
    told = replace(told_of(Status.CRASHED), reason="\x1b[2J\x07gone\x9b")
    assert not any(set(line) & {"\x1b", "\x07", "\x9b"} for line in summary(book_of(told)))
    assert plain("a\tb\nc\rd") == "a\tb\nc?d"


def test_summary_tells_skips_by_reason_broken_claims_and_notes() -> None:
    lines = list(summary(book_of()))
    assert "skipped 2: needs arch sm_100a" in lines
    assert any(line.startswith("  broken") and "fused_softmax" in line for line in lines)
    assert any(line.startswith("note: the copy canary") for line in lines)


def shifted_book(word: Word | Status) -> Book:
    """Return a book of one variant on a machine that shifted."""
    book = book_of(told_of(word))
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
    return replace(book, run=structs.replace(book.run, shift=shift, claims=()))


def test_a_shifted_machine_is_told_first_and_fails_the_run() -> None:
    book = shifted_book(Word.UNCLEAR)
    assert list(summary(book))[1] == "machine-shift: 5 of 6 comparable variants are slower"
    assert book.fails
    assert not book.is_broken
    assert shifted_book(Word.SLOWER).is_broken


def test_a_slower_variant_says_what_is_needed_to_act() -> None:
    text = account_text(Word.SLOWER)
    assert text.startswith("slower +2.13 %: memory.stream[op=copy,n=268435456]\n")
    words = [line.split()[0] for line in text.splitlines()[1:]]
    assert words == ["metric", "baseline", "measured", "change", "limits", "reason", "again"]
    assert "threshold 0.25 %, gate 1.0 %" in text
    assert "pytest --perf --perf-select 'memory.stream[op=copy,n=268435456]'" in text


def test_a_variant_whose_kernels_were_traced_says_why_it_changed() -> None:
    (account,) = accounts_of(explained_data.explained((told_of(Word.SLOWER),)), OPTIONS).values()
    lines = [line.split(maxsplit=1) for line in account.text.splitlines()]
    (why,) = [text for word, text in lines if word == "why"]
    assert "one more kernel" in why
    assert [word for word, _ in lines][-3:] == ["reason", "why", "again"]


def test_an_over_budget_variant_names_the_budget() -> None:
    assert "85 % of the copy ceiling" in account_text(Word.OVER_BUDGET)


@pytest.mark.parametrize("word", [Status.WRONG, Status.CRASHED, Status.TIMED_OUT, Status.ERROR])
def test_a_variant_that_did_not_end_well_fails_with_its_reason(word: Status) -> None:
    (account,) = accounts_of(book_of(told_of(word)), OPTIONS).values()
    assert account.fails
    assert account.text.startswith(f"{word.value}: ")
    assert "  again " in account.text


@pytest.mark.parametrize("word", [Status.SKIPPED, Status.DISTURBED])
def test_a_variant_that_could_not_be_measured_is_skipped_with_its_reason(word: Status) -> None:
    (account,) = accounts_of(book_of(told_of(word)), OPTIONS).values()
    assert account.skipped
    assert account.text == book_of(told_of(word)).subjects[0].reason


@pytest.mark.parametrize("word", [Word.SAME, Word.FASTER, Word.NEW, Word.UNCLEAR])
def test_other_verdicts_pass(word: Word) -> None:
    (account,) = accounts_of(book_of(told_of(word)), OPTIONS).values()
    assert not account.fails
    assert not account.skipped
    assert ("perf_verdict", word.value) in account.properties


def test_statuses_fail_as_the_options_say() -> None:
    options = replace(OPTIONS, fail_on=("disturbed",))
    (disturbed,) = accounts_of(book_of(told_of(Status.DISTURBED)), options).values()
    (wrong,) = accounts_of(book_of(told_of(Status.WRONG)), options).values()
    assert disturbed.fails
    assert not wrong.fails


def test_the_command_to_measure_again_repeats_what_was_asked_for() -> None:
    options = replace(OPTIONS, device="cpu", pack=(Path("my pack.py"),), processes=5, seed=7)
    (account,) = accounts_of(book_of(told_of(Word.SLOWER)), options).values()
    tail = "--perf-device=cpu '--perf-pack=my pack.py' --perf-processes=5 --perf-seed=7"
    assert account.text.endswith(tail)


def test_a_broken_claim_fails_with_the_ratio_and_its_source() -> None:
    book = book_of()
    broken = next(claim for claim in book.run.claims if claim.fails)
    instance = ClaimInstance(
        id=broken.claim,
        pack="compute",
        name="fused_softmax",
        faster="compute.softmax[a]",
        than="compute.softmax[b]",
        by=1.5,
        source=broken.source,
    )
    book = replace(book, run=structs.replace(book.run, instances=(instance,)))
    account = accounts_of(book, OPTIONS)[broken.claim]
    assert account.fails
    assert "1.50x (Triton tutorial 2, fused softmax)" in account.text
    assert ("perf_ratio", 1.06) in account.properties


def test_progress_without_a_terminal_is_a_line_for_what_matters() -> None:
    lines: list[str] = []
    with Ticker(lines.append) as ticker:
        ticker.planned(3, FACTS, 4.0)
        ticker.phase("a.b[n=1]", "check")
        ticker.finished(Result(variant="a.b[n=1]", status=Status.OK), 1, 3)
        ticker.finished(Result(variant="a.b[n=2]", status=Status.CRASHED), 2, 3)
        ticker.finished(Result(variant="a.b[n=3]", status=Status.OK), 3, 3)
        ticker.note("confirming 1")
    assert lines == [
        "perfsuite: 3 variants on NVIDIA H200, about 4.0 s",
        "[2/3] a.b[n=2]: crashed",
        "[3/3] a.b[n=3]: ok",
        "note: confirming 1",
    ]


class Tty(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_whole_ids_and_obeys_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Tty()
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
def test_a_workflow_obeys_no_worker(line: str) -> None:
    book = book_of(replace(told_of(Status.CRASHED), reason=f"first\n{line}"))
    spoken = tuple(structs.replace(each, output=f"{line}\n  {line}") for each in book.run.results)
    book = read(structs.replace(book.run, results=spoken), baselines=book.baselines)
    (account,) = accounts_of(book, OPTIONS).values()
    lines = [*account.text.splitlines(), *summary(book)]
    assert sum(line.rsplit("::", maxsplit=1)[-1][-6:] in each for each in lines) >= 3
    assert not any(each.strip().startswith("::") or "##[" in each for each in lines)
