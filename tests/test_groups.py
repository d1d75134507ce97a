"""Variants that ended alike are told as one, by what they share."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from report_data import STORY, baselines_of, run_of

from perfsuite.model import variant_id
from perfsuite.report.data import read
from perfsuite.report.groups import advice, alike, common, groups_of
from perfsuite.report.view import MARKS, PLAIN
from perfsuite.run.expected import find_expected, source_of
from perfsuite.run.run import entries_in
from perfsuite.store.runs import load_run

EXAMPLE = Path(__file__).parents[1] / "reports" / "example"
IDS = [
    variant_id("memory", "stream", {"impl": impl, "op": op, "n": n})
    for impl, op, n in product(("cuda", "torch"), ("add", "copy", "dot"), (1, 2, 4))
]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (IDS, [("memory.stream", 18, 18)]),
        (IDS[1:], [("memory.stream", 17, 18)]),
        (IDS[:9], [("memory.stream, impl=cuda", 9, 9)]),
        (IDS[:7], [("memory.stream, impl=cuda", 7, 9)]),
        (IDS[:3], [("memory.stream, impl=cuda, op=add", 3, 3)]),
        (IDS[4:5], [(IDS[4], 1, 1)]),
        # One straggler does not hide what the others share.
        ([*IDS[:8], IDS[17]], [("memory.stream, impl=cuda", 8, 9), (IDS[17], 1, 1)]),
        ([*IDS, "memory.copy[]"], [("memory.stream", 18, 18), ("memory.copy[]", 1, 1)]),
        ([], []),
    ],
)
def test_members_are_told_by_what_sets_them_apart(
    chosen: list[str], told: list[tuple[str, int, int]]
) -> None:
    found = list(alike(chosen, IDS))
    assert [(one.name, len(one.members), one.total) for one in found] == told
    assert sorted(name for one in found for name in one.members) == sorted(chosen)


def test_facts_that_most_share_are_the_cause() -> None:
    block, other, rare = ("block", "128", "256"), ("block", "64", "256"), ("driver", "1", "2")
    assert list(common([[block], [block], [block, rare]])) == ["block 128 \u2192 256"]
    assert list(common([[block], [other]])) == ["block (for example 128 \u2192 256)"]
    assert list(common([[rare], [block]])) == []
    assert list(common([[("SM clock", "", "3 % lower")]] * 2)) == ["SM clock 3 % lower"]


def test_a_run_is_told_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    run = find_expected([EXAMPLE / "baselines"], tmp_path, run=run).hold(run)
    run_view = read(run, baselines=entries_in(run), source=source_of(run))
    slower, faster, *same = groups_of(run_view)
    assert slower.outcome.translate(PLAIN) == "10 of 17 slower by 7.1 to 10.5 % (median 9.9 %)"
    assert slower.cause.translate(PLAIN).startswith("block 128x1x1 -> 256x1x1, ")
    # What differs makes nothing unclear: the first one's doubt does.
    assert slower._replace(mark=MARKS["unclear"]).cause.startswith(f"{slower.first.id}: ")
    assert slower.rest.translate(PLAIN) == "23 others of memory.stream the same within 0.58 %"
    assert slower.views[-1].cause.endswith("fall into two groups: 194.8 us and 200.1 us")
    found = [slower, slower._replace(mark=MARKS["environment"]), slower]  # two fail, one does not
    monkeypatch.setattr("perfsuite.report.groups.groups_of", lambda _: found)
    assert next(advice(run_view)).text == "see why it got slower"
    both = (slower.first, next(v for v in same[0].views if v.variant.axes["impl"] == "torch"))
    every = slower._replace(mark=MARKS["wrong"], views=both, alike=slower.alike._replace(total=2))
    assert every.remedy.startswith("look at the reference first")
    for one in slower.views:  # as where nothing was traced
        vars(one)["explanation"] = one.explanation._replace(share=None)
    assert "traced" not in slower.cause
    assert (slower.failing, faster.alike.name) == ("all fail", faster.first.id)
    assert {(one.mark.word, one.cause) for one in same} == {("same", "")}


def test_every_variant_that_ran_is_in_one_group() -> None:
    run_view = read(run_of(STORY), baselines=baselines_of(STORY))
    groups = groups_of(run_view)
    assert sorted(v.id for g in groups for v in g.views) == sorted(v.id for v in run_view.ran)
    assert [g.mark.rank for g in groups] == sorted(g.mark.rank for g in groups)
    told = {g.alike.name: g.outcome for g in groups}
    assert told["compute.gemm[size=4096,impl=naive]"] == "wrong"
    assert told["compute.gemm, impl=cublas"] == "3 of 4 same"
