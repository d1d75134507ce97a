"""What has room in a run's time limit: by value, by age, and what is told of the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import store_data
from against_data import commit, git
from msgspec import structs
from options_data import OPTIONS
from test_runner import PACK, QUICK, Log, request, slow_down

from perfsuite import model
from perfsuite.nightly.limit import Fit, Past, earlier_runs, fit_of, past_of
from perfsuite.report.data import read
from perfsuite.report.files import render_page, verdict_json
from perfsuite.report.files import summary as markdown
from perfsuite.report.groups import advice
from perfsuite.report.terminal import summary
from perfsuite.run.config import TimeLimit
from perfsuite.run.run import entries_in, execute
from perfsuite.store.git import touched_since
from perfsuite.store.runs import load_run

MANY = PACK.replace("[100, 200]", "[100, 110, 120, 130, 140, 150, 160, 170]")
ONE = structs.replace(QUICK, processes=1, confirm_processes=1)


def variants(count: int) -> list[model.Variant]:
    return [store_data.variant(f"memory.case{index:02}", 1) for index in range(count)]


def fit(room_s: float, *claims: model.ClaimInstance, **known: Any) -> Fit:
    return Fit(limit=TimeLimit(room_s / 0.6), claims=claims, room_s=room_s, **known)


def past(run: str, word: str = "same", *, cost_s: float = 1.0, doubt: str = "") -> Past:
    """A past in which a process took ``cost_s``."""
    return Past(run=run, commit="c", word=word, doubt=doubt, costs_s=[cost_s])


def test_times_are_read_as_people_write_them() -> None:
    known = {"90s": 90, "30m": 1800, "1h30m": 5400, "0.5h": 1800, "1h5s": 3605}
    assert {text: model.seconds_of(text) for text in known} == known
    assert [model.seconds_of(model.words_of(seconds)) for seconds in known.values()] == [
        *known.values()
    ]
    for text in ("", "30", "0m", "m", "30 m", "1m1h", "-5s", "5x", "nans", "٣m"):
        with pytest.raises(ValueError, match="is no time"):
            model.seconds_of(text)


def test_doubt_comes_before_a_change_and_no_baseline_and_claims_stay_together() -> None:
    some = variants(6)
    old, ids = "20261101", [each.id for each in some]
    known = {name: past("20261120") for name in ids}
    known |= {ids[5]: past(old), ids[2]: past("20261120", "unclear", doubt="unclear")}
    entries = {
        name: model.BaselineEntry(variant=name, case_version=1, run="r", metrics={})
        for name in ids
        if name != ids[3]
    }
    found = fit(100, past=known, entries=entries, touched=frozenset({ids[1]})).chosen(some)
    # The oldest, whatever it is; then doubt, a change, no baseline; then by age.
    assert [v.id for v in found][:4] == [ids[5], ids[2], ids[1], ids[3]]
    claim = structs.replace(store_data.TWICE, faster=ids[0], than=ids[4])
    for room_s in range(3, 16):
        chosen = {each.id for each in fit(room_s, claim, past=known).chosen(some)}
        assert (ids[0] in chosen) is (ids[4] in chosen)
    some += [store_data.variant(f"compute.case{index}", 1) for index in range(6)]
    assert {each.pack for each in fit(18).chosen(some)} == {"compute", "memory"}


def test_over_several_nights_everything_has_its_turn_whatever_is_in_doubt() -> None:
    some = variants(40)
    costs = {each.id: 0.5 + index % 7 for index, each in enumerate(some)}
    doubts = {each.id: "unclear" if index < 20 else "" for index, each in enumerate(some)}
    known: dict[str, Past] = {}
    counts: dict[str, int] = dict.fromkeys(costs, 0)
    for number in range(25):
        chosen = fit(40, past=known, processes=1).chosen(some)
        spent = sum(costs[each.id] for each in chosen)
        assert len({each.id for each in chosen}) == len(chosen)
        assert number == 0 or spent <= 40 + 7  # what was never measured is guessed
        for each in chosen:
            counts[each.id] += 1
            name, doubt = f"2026{number:04}", doubts[each.id]
            known[each.id] = past(name, doubt or "same", cost_s=costs[each.id], doubt=doubt)
    assert min(counts.values()) >= 2
    doubted = sum(counts[name] for name, doubt in doubts.items() if doubt)
    assert doubted > sum(counts.values()) - doubted


def test_what_never_fits_says_so_and_keeps_nothing_else_out() -> None:
    some = variants(3)
    known = {each.id: past("20261120") for each in some} | {some[0].id: past("", cost_s=99.0)}
    found = fit(10, past=known, processes=1)
    assert [each.id for each in found.chosen(some)] == [some[1].id, some[2].id]
    done = [model.Result(variant=each.id, status=model.Status.OK) for each in some[1:]]
    (left,) = found.cut(store_data.planned(*some).having(results=done)).left_out
    assert left.variant == some[0].id
    assert "too long for it; 1m39s of the 10s that it leaves" in left.reason


def test_costs_of_what_was_never_measured_are_those_of_its_like() -> None:
    some = [store_data.variant("memory.copy", n) for n in (1, 2, 3)]
    other = store_data.variant("compute.gemm", 1)
    known = {some[0].id: past("1", cost_s=2.0), some[1].id: past("1", cost_s=4.0)}
    costs = fit(1, past=known).costs_s([*some, other])
    assert [costs[each.id] for each in (*some, other)] == [6.0, 12.0, 9.0, 9.0]
    assert fit(1).costs_s([other]) == {other.id: 3.0}


LONG_AGO = {"id": "20200101-000000-00000000", "started": "2020-01-01T00:00:00+00:00"}


def costing(run: model.Run, wall_s: float) -> model.Run:
    """A run long ago, in which each variant took so long."""
    results = [structs.replace(result, wall_s=wall_s) for result in run.results]
    return structs.replace(run.having(results=results), **LONG_AGO)


def test_a_night_measures_what_fits_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tmp_path, MANY, settings=ONE)
    first = execute(asked, Log())
    first.run_file.unlink()
    store_data.kept(asked.folder, costing(first.run, 20.0))
    slow_down(tmp_path, 110, by=1.1)
    monkeypatch.setattr("perfsuite.run.run.CONFIRM_END", 0.0)
    outcome = execute(replace(asked, time_s=120.0), Log())
    run = outcome.run
    # 60 % of two minutes has room for three of 20 s.
    assert len({result.variant for result in run.asked}) == 3
    assert [each.cost_s for each in run.left_out] == [20.0] * 5
    assert run.notes[0] == (
        "--perf-time 2m: 3 of 8 variants had room, 5 were left out (about 1m40s of measuring): "
        "5 new when last measured"
    )
    assert load_run(outcome.run_file) == store_data.stored(run)
    run_view = read(run, baselines=entries_in(outcome.run))
    said = "\n".join(summary(run_view))
    assert "5 left out" in said
    assert "\n      not confirmed: --perf-time 2m left no time; the change may be anything" in said
    told = "measure this alone, or all with more --perf-time (unclear: acme.double[us=110])"
    assert told in {step.text for step in advice(run_view)}
    assert "--perf-processes" not in said
    for text in (markdown(run_view), render_page(run_view), verdict_json(run_view)):
        assert "--perf-time 2m has no room" in text
    # There was no time to confirm a change.
    moved = run.verdicts[1]
    assert (moved.word, moved.fails) == (model.Word.UNCLEAR, False)
    assert "not confirmed: --perf-time 2m left no time" in moved.reason
    later = structs.replace(run, id="29990101-000000-00000000")
    assert past_of(later, asked.folder)[moved.variant].doubt == "unclear"


@pytest.mark.parametrize(
    ("guess_s", "takes_s", "measured"), [(100.0, 50.0, 11), (20.0, 50.0, 11), (100.0, 20.0, 24)]
)
def test_what_was_left_out_is_measured_while_the_time_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guess_s: float, takes_s: float, measured: int
) -> None:
    asked = request(tmp_path, PACK.replace("[100, 200]", str([*range(100, 124)])), settings=ONE)
    first = execute(asked, Log())
    first.run_file.unlink()
    store_data.kept(asked.folder, costing(first.run, guess_s))
    now_s = [0.0]

    def taken(result: model.Result, *_: object) -> model.Result:
        now_s[0] += takes_s
        return structs.replace(result, wall_s=takes_s)

    # The clock moves on with each variant alone: how busy this machine is makes no difference.
    monkeypatch.setattr("perfsuite.run.run.plausible", taken)
    monkeypatch.setattr("perfsuite.run.run.TimeLimit", partial(TimeLimit, started=0.0))
    monkeypatch.setattr("perfsuite.run.config.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    run = execute(replace(asked, time_s=600.0), Log()).run
    screened = [result for result in run.asked if result.stage is model.Stage.SCREEN]
    assert (len(screened), len(run.left_out)) == (measured, 24 - measured)
    assert len({result.variant for result in screened}) == measured
    assert now_s[0] <= 600.0
    assert not run.left_out or now_s[0] >= 0.85 * 600.0


def test_what_has_no_room_after_a_resume_is_not_said_to_be_too_long(tmp_path: Path) -> None:
    asked = replace(OPTIONS, root=tmp_path)
    earlier = costing(store_data.finished({"copy": 100.0, "scan": 200.0}), 60.0)
    store_data.kept(asked.folder, earlier)
    run = structs.replace(earlier, id="20210101-000000-00000000", settings=ONE)
    reasons = []
    for seconds, spent_s in ((120.0, 71.0), (120.0, 200.0), (30.0, 0.0)):
        limit = TimeLimit(seconds, spent_s)
        found = fit_of(run, asked, limit=limit, entries={}, devices=1)
        assert found.chosen([one.variant for one in run.variants]) == ()
        (why,) = {each.reason for each in found.cut(run.having(results=())).left_out}
        reasons.append(why)
    resumed = "--perf-time 2m has no room: no baseline, ok when last measured, 2020-01-01"
    assert reasons[:2] == [resumed, resumed]
    assert "too long for it; " in reasons[2]


def test_earlier_runs_tell_costs_and_doubts_and_hide_no_earlier_one(tmp_path: Path) -> None:
    times = {"copy": 100.0, "scan": 200.0}
    for number in range(14):
        run = store_data.finished(times, run_id=f"202611{number + 10}-000000-aaaa")
        name = run.variants[0].id
        word = model.Verdict(
            variant=name, word=model.Word.SLOWER, confirmation=model.Confirmation.FRESH
        )
        results = [structs.replace(each, wall_s=3.0 * (number + 1)) for each in run.results]
        wrong = structs.replace(
            results[1], stage=model.Stage.CONFIRM, status=model.Status.WRONG, evidence=()
        )
        left_out = [model.LeftOut(variant=name, reason="no room")] if number else []
        store_data.kept(
            tmp_path, run.having(results=(*results, wrong), verdicts=[word], left_out=left_out)
        )
    ids = [variant.id for variant in run.variants]
    more = store_data.finished({**times, "never": 1.0}, run_id="20261201-000000-aaaa")
    found = past_of(more, tmp_path)
    assert {name: each.doubt for name, each in found.items()} == {ids[0]: "slower", ids[1]: "wrong"}
    assert found[ids[0]].costs_s == [14.0, 13.0, 12.0]  # a process, the newest first
    # Nights with little room do not count among those that are looked back at.
    assert len(list(earlier_runs(tmp_path, more))) == 14


def test_a_change_of_a_cases_file_makes_its_variants_urgent(tmp_path: Path) -> None:
    asked = request(tmp_path)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    ids = [each.id for each in asked.variants]
    for text, touched in (("", []), ("\n# edited\n", ids)):
        with (tmp_path / "acme.py").open("a", encoding="utf-8") as file:
            file.write(text)
        found = touched_since(tmp_path, asked.packs, asked.variants, dict.fromkeys(ids, "HEAD"))
        assert sorted(found) == sorted(touched)
