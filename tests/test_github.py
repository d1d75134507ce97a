"""Annotations and the step's summary, as GitHub's own parser takes them apart."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import report_data as data
from msgspec import structs

from perfsuite.boundary import plain
from perfsuite.model import ClaimInstance, Status, Word
from perfsuite.report.data import Book, read
from perfsuite.report.text import MOST_BYTES, append_summary, commands_of

SOURCE_FILE = "plugins/memory/perfsuite_memory/stream.py"


def book_of(*story: data.Told) -> Book:
    return read(data.run_of(story), baselines=data.baselines_of(story), source="baseline")


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """Take a command apart as the runner does: properties at commas, then what is escaped."""
    assert "\n" not in line
    assert "\r" not in line
    kind, rest = line.removeprefix("::").split(" ", 1)
    properties, message = rest.split("::", 1)
    pairs = (each.split("=", 1) for each in properties.split(","))
    return kind, {name: unescaped(text) for name, text in pairs}, unescaped(message)


def unescaped(text: str) -> str:
    for mark, code in (("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C"), ("%", "%25")):
        text = text.replace(code, mark)
    return text


def checkout(folder: Path) -> Path:
    file = folder / SOURCE_FILE
    file.parent.mkdir(parents=True)
    file.touch()
    return folder


def commands(book: Book, folder: Path) -> list[tuple[str, dict[str, str], str]]:
    return [parsed(line) for line in commands_of(book, here=folder, workspace=folder)]


def test_a_failure_is_an_error_at_the_line_of_its_case(tmp_path: Path) -> None:
    told = replace(data.STORY[1], reason="")
    found = commands(read(data.run_of((told,)), baselines={}), checkout(tmp_path))
    kind, place, message = found[0]
    assert kind == "error"
    assert (place["file"], place["line"]) == (SOURCE_FILE, "24")
    assert place["title"] == "slower +2.13\u202f%: memory.stream[op=copy,n=268435456]"
    assert message.startswith("slower by +2.13%")


def test_what_does_not_fail_is_a_warning_and_quiet_ones_are_nothing(tmp_path: Path) -> None:
    words = (Word.UNCLEAR, Word.SAME, Word.FASTER, Word.NEW)
    book = book_of(*(told for told in data.STORY if told.word in words))
    book = replace(book, run=structs.replace(book.run, claims=()))
    found = commands(book, tmp_path)
    assert {kind for kind, _, _ in found} == {"warning"}
    assert len(found) == 2


def test_a_file_outside_of_the_checkout_is_left_out(tmp_path: Path) -> None:
    (_, place, _), *_ = commands(book_of(data.STORY[1]), tmp_path)
    assert place.keys() == {"title"}


def test_text_cannot_end_a_command_or_add_a_property(tmp_path: Path) -> None:
    text = "50 % of it\x1b[2J::error file=x,line=1::\r\n::set-output name=a::b %0A"
    run = data.run_of(())
    broken = structs.replace(run.claims[2], claim=f"c,{text}", reason=text)
    book = read(structs.replace(run, claims=(broken,)), baselines={})
    ((_, place, message),) = commands(book, tmp_path)
    assert place == {"title": plain(f"broken: c,{text}")}
    assert message == plain(text)


def test_at_most_ten_of_a_kind_the_worst_first(tmp_path: Path) -> None:
    slower = [replace(data.STORY[1], axes={"n": n}) for n in range(30)]
    unclear = [told for told in data.STORY if told.word is Word.UNCLEAR]
    many = [replace(unclear[0], axes={"n": n}) for n in range(10)]
    wrong = [told for told in data.STORY if told.word in {Status.WRONG, Status.CRASHED}]
    found = commands(book_of(*slower, *wrong, *many), tmp_path)
    errors = [one for one in found if one[0] == "error"]
    assert len(errors) == 10
    assert errors[-1][2].startswith("and ")
    titles = [place["title"].partition(" ")[0] for _, place, _ in errors[:3]]
    assert titles == ["wrong:", "crashed:", "slower"]
    assert sum(kind == "warning" for kind, _, _ in found) == 10


def test_a_broken_claim_stands_at_its_case(tmp_path: Path) -> None:
    book = book_of(data.STORY[0])
    broken = next(claim for claim in book.run.claims if claim.fails)
    claim = ClaimInstance(
        id=broken.claim,
        pack="compute",
        name="fused",
        faster="a.b[c=1]",
        than="a.b[c=2]",
        by=1.5,
        source="x",
        file=SOURCE_FILE,
        line=7,
    )
    run = structs.replace(book.run, instances=(claim,))
    ((kind, place, message),) = commands(read(run, baselines={}), checkout(tmp_path))
    assert (kind, place["file"], place["line"]) == ("error", SOURCE_FILE, "7")
    assert message == broken.reason


def test_the_step_s_summary_is_appended_to_if_it_has_room(tmp_path: Path) -> None:
    file, book = tmp_path / "summary", book_of(*data.STORY)
    file.write_text("before\n")
    append_summary(book, file)
    assert file.read_text("utf-8").startswith("before\n### ❌")
    file.write_bytes(b"x" * (MOST_BYTES - 10))
    append_summary(book, file)
    assert file.stat().st_size == MOST_BYTES - 10


def test_a_pipe_in_the_summary_s_place_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        append_summary(book_of(*data.STORY), tmp_path / "pipe")
