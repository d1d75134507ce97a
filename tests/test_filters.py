"""Lines are filtered by the words they share, through kinds that the page's script intersects."""

from __future__ import annotations

import report_data as data
from msgspec.structs import replace

from perfsuite.report.data import Filters, filters, read


def found() -> tuple[Filters, list[str]]:
    book = read(data.run_of(), baselines=data.baselines_of())
    return filters(book.rows), [row.subject.variant.id for row in book.rows]


def kept(choice: str, word: str) -> set[str]:
    sieve, ids = found()
    (one,) = [one for one in dict(sieve.fields)[choice] if one.word == word]
    kinds = {int(kind) for kind in one.kinds.split()}
    names = {name for name, kind in zip(ids, sieve.kinds, strict=True) if kind in kinds}
    assert len(names) == one.count
    return names


def test_a_word_keeps_the_lines_that_have_it_and_no_other() -> None:
    slower = kept("verdict", "slower")
    assert "compute.gemm[size=8192,impl=cublas]" in slower
    assert len(slower) == 3
    assert {name.partition(".")[0] for name in kept("pack", "memory")} == {"memory"}
    assert "compute.gemm[size=4096,impl=naive]" not in kept("metric", "time_us")


def test_verdicts_come_by_urgency_and_time_is_the_first_metric() -> None:
    fields = dict(found()[0].fields)
    assert [one.word for one in fields["verdict"]][:2] == ["wrong", "crashed"]
    assert [one.word for one in fields["metric"]] == ["time_us", "launches", "peak_bytes"]


def test_a_field_that_chooses_nothing_is_left_out() -> None:
    assert "tag" not in dict(found()[0].fields)
    run = data.run_of(data.STORY[:1])
    assert [name for name, _ in filters(read(run, baselines={}).rows).fields] == ["metric"]
    tagged = replace(run.variants[0], case=replace(run.variants[0].case, tags=("a", "b")))
    sieve = filters(read(replace(run, variants=(tagged,)), baselines={}).rows)
    assert [one.word for one in dict(sieve.fields)["tag"]] == ["a", "b"]
