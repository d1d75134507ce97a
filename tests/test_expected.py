"""What a run is compared with, and what no result may exceed."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import store_data as data
from msgspec.structs import replace

from perfsuite.boundary import StoreError, UsageError
from perfsuite.devices.peaks import peaks_of
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    ClaimVerdict,
    ClaimWord,
    Evidence,
    Expected,
    Regime,
    Result,
    Revision,
    Run,
    Source,
    Status,
    Trace,
    TracedKernel,
    Variant,
    VariantRun,
    Verdict,
    Wheel,
    Word,
    Work,
    because,
)
from perfsuite.run.accept import accept, reset
from perfsuite.run.config import TimeLimit
from perfsuite.run.expected import Basis, Forecast, find_expected, gaps, plausible, rank, source_of
from perfsuite.run.run import Judging, entries_in

TIMES = {"copy": 100.0}
COPY = data.variant("copy", 1024).id


@pytest.mark.parametrize(("moved", "told"), [(4e8, ""), (5e8, "110% of the measured ceiling")])
def test_a_rate_beyond_the_ceiling_is_an_error_of_the_case(moved: float, told: str) -> None:
    variant = replace(data.variant("copy", 64), work=Work(read_bytes=moved))
    result = Result(variant=variant.id, status=Status.OK, evidence=(data.evidence(100.0),))
    found = plausible(result, variant, peaks_of("nvidia-h200"))
    assert found.status is (Status.ERROR if told else Status.OK)
    assert told in found.reason


def test_confirmation_prefers_the_baselines_unit_then_another_than_the_screens() -> None:
    (entry,) = entries_of(data.finished(TIMES)).values()
    (home,) = entry.metrics["time_us"].values
    bare = VariantRun(variant=data.variant("copy", 1024), expected=Expected(entry=entry))
    process = replace(data.evidence(100.0), unit="screened")
    screened = Result(variant=entry.variant, status=Status.OK, evidence=(process,))
    units = (home, "another", "screened")
    assert [rank(replace(bare, results=(screened,)), unit) for unit in units] == [0, 1, 2]
    assert [rank(bare, unit) for unit in units] == [0, 0, 0]


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ({"fast": 100.0, "slow": 250.0}, "it held before: 2.50x"),
        ({"fast": 100.0, "slow": 150.0}, "it did not hold before either: 1.50x"),
        ({"fast": 100.0}, "nothing to compare it with: no baseline has both sides"),
    ],
)
def test_a_broken_claim_fails_only_if_it_held_before(before: dict[str, float], why: str) -> None:
    fast, slow = (data.variant(case, 1024).id for case in ("fast", "slow"))
    claim = replace(data.TWICE, id="c", faster=fast, than=slow)
    broken = ClaimVerdict(claim="c", word=ClaimWord.BROKEN, required=2.0, source="s", fails=True)
    entries = entries_of(data.finished(before))
    basis = Basis(expected={name: Expected(entry=entry) for name, entry in entries.items()})
    run = replace(data.finished({"fast": 100.0, "slow": 150.0}), instances=(claim,))
    decided = replace(broken, low=0.97, high=0.98)  # inside one process
    (found,) = Judging(basis).whole(basis.hold(run), {}, [decided]).claims
    told = f"the table's times, of other processes, give 1.50x; {why}"
    assert (found.reason, found.fails) == (told, "it held" in why)


FIRST, SECOND, THIRD = (f"20260101-00000{second}-aaaa" for second in range(3))


def keep(folder: Path, run_id: str, time_us: float, word: Word = Word.SAME, **facts: Any) -> Run:
    """Store a finished run of one variant that was given this word, on a device of these facts."""
    run = data.finished({"copy": time_us}, run_id=run_id)
    run = replace(run, facts=replace(run.facts, **facts))
    run = run.having(verdicts=[Verdict(variant=COPY, word=word)])
    return data.kept(folder, run)


def held(folder: Path, *, version: int = 1, now: Run | None = None) -> tuple[float, str]:
    """Return the time that a run of now is compared with, and in words of which run."""
    run = now or data.finished(TIMES)
    (one,) = run.variants
    of_version = replace(one.variant, case=replace(one.variant.case, version=version))
    run = replace(run, variants=data.ran(of_version))
    run = (basis := find_expected([folder / "none"], folder, run=run)).hold(run)
    (entry,) = entries_in(run).values()
    # What a report draws as before is what was compared with.
    assert basis.previous is not None
    assert entries_of(basis.previous) == {COPY: entry}
    return round(entry.metrics["time_us"].center), source_of(run)


def test_the_reference_is_the_first_run_whatever_later_ones_were(tmp_path: Path) -> None:
    keep(tmp_path, "20251231-000000-aaaa", 140.0, Word.SLOWER)  # than a revision
    for number, word in enumerate((Word.UNCLEAR, Word.SAME, Word.FASTER)):
        keep(tmp_path, f"20260101-00000{number}-aaaa", 100.0 + number, word)
    assert held(tmp_path) == (100, f"first run {FIRST}")
    first = tmp_path / "runs" / f"{FIRST}.jsonl"
    first.write_bytes(b"")
    assert held(tmp_path) == (101, f"first run {SECOND}")
    notes = find_expected([tmp_path / "none"], tmp_path, run=data.finished(TIMES)).notes
    assert any(note.startswith(f"{first} cannot be read") for note in notes)
    first.unlink()
    assert held(tmp_path) == (101, f"first run {SECOND}")


@pytest.mark.parametrize("is_accepted", [False, True])
def test_an_entry_knows_the_code_that_was_measured(tmp_path: Path, *, is_accepted: bool) -> None:
    wheel = Source(wheel=Wheel("memory", "1.2", "c0ffee"))
    kept = Source(commit="c" * 40, tree="d" * 40, is_changed=True)
    for name, sources, commit, known in (
        ("wheel", {"memory": wheel, "other": kept}, "abc1234", wheel),
        ("changed", {"memory": kept}, "abc1234-dirty", kept),
        ("old", {}, "abc1234", Source(commit="abc1234")),
        ("old and changed", {}, "abc1234-dirty", Source(is_changed=True)),
        ("no git", {"memory": Source()}, "abc1234", Source()),
        ("old, no git", {}, "", None),
    ):
        run = replace(data.finished(TIMES, run_id=FIRST), sources=sources, commit=commit)
        folder = tmp_path / name
        data.kept(folder, run)
        if is_accepted:
            accept(run, folder / "baselines", reason="first", by="Ann")
            (folder / "runs" / f"{FIRST}.jsonl").unlink()
        found = find_expected([folder / "baselines"], folder, run=data.finished(TIMES))
        assert found.expected[COPY].source_a == known


def test_the_reference_is_comparable_or_the_last_run_says_why_not(tmp_path: Path) -> None:
    keep(tmp_path, FIRST, 100.0, state={"ecc": "off", "power_limit_w": "700"})
    assert held(tmp_path) == (100, f"last run {FIRST}")
    keep(tmp_path, SECOND, 110.0)
    keep(tmp_path, THIRD, 120.0)
    assert held(tmp_path) == (110, f"first run {SECOND}")
    assert held(tmp_path, version=2) == (120, f"last run {THIRD}")


def test_reset_moves_the_reference_of_what_a_run_measured(tmp_path: Path) -> None:
    runs = [keep(tmp_path, name, 100.0 + n) for n, name in enumerate((FIRST, SECOND, THIRD))]
    with pytest.raises(UsageError, match=r"(?s)no variant .*'memory\.fill'"):
        reset(runs[1], tmp_path, [], select=["memory.fill"])
    assert reset(runs[1], tmp_path, [], select=["memory.copy"]) == (COPY,)
    assert held(tmp_path) == (101, f"run {SECOND}, named by baseline reset")
    assert held(tmp_path, now=replace(data.finished(TIMES), id=SECOND))[0] == 100, "of before"
    other = replace(data.finished(TIMES), facts=replace(data.FACTS, unit=data.OTHER_UNIT))
    keep(tmp_path, "20260101-000003-aaaa", 130.0, unit=data.OTHER_UNIT)
    assert held(tmp_path, now=other)[0] == 130
    # A run that is gone leaves what followed it, not what was before.
    (tmp_path / "runs" / f"{SECOND}.jsonl").unlink()
    assert held(tmp_path) == (102, f"first run {THIRD}")
    for bad, what in ((runs[1], "is not there"), (replace(runs[2], finished=""), "interrupted")):
        with pytest.raises(UsageError, match=what):
            reset(bad, tmp_path, [])
    with pytest.raises(UsageError, match="nothing of it ended ok"):
        reset(runs[2].having(results=()), tmp_path, [])
    accept(runs[2], tmp_path / "baselines", reason="first numbers", by="Ann")
    with pytest.raises(UsageError, match="what was selected of it has baselines"):
        reset(runs[2], tmp_path, [tmp_path / "baselines"])
    (tmp_path / "reference.json").write_text('{"schema": "perfsuite.reference/1", "units": 7}')
    with pytest.raises(StoreError, match="not a sound References"):
        held(tmp_path)


def test_a_variant_that_the_first_run_lacks_takes_the_first_that_has_it(tmp_path: Path) -> None:
    keep(tmp_path, FIRST, 100.0)
    cases = {"copy": 100.0}
    for number, case in enumerate(("fill", "gather", "scan", "scatter"), 1):
        cases[case] = 50.0 + number
        run = data.finished(cases, run_id=f"20260101-00000{number}-aaaa")
        data.kept(tmp_path, run)
    now = data.finished(cases)
    run = find_expected([tmp_path / "none"], tmp_path, run=now).hold(now)
    runs = [entry.run for entry in entries_in(run).values()]
    assert runs == [f"20260101-00000{number}-aaaa" for number in range(5)]
    assert source_of(run).endswith("first run 20260101-000002-aaaa; 2 more")


def test_kernels_that_the_reference_lacks_are_of_a_later_run_that_was_the_same(
    tmp_path: Path,
) -> None:
    for number, word in enumerate((Word.NEW, Word.SLOWER, Word.SAME, Word.SAME)):
        run = data.finished(TIMES, run_id=f"20260101-00000{number}-aaaa")
        run = run.having(verdicts=[Verdict(variant=COPY, word=word)])
        kernels = (TracedKernel(name=f"of_{number}", count=1.0, duration_us=9.0),)
        traces = (Trace(variant=COPY, kernels=kernels),) if number else ()
        data.kept(tmp_path, run.having(traces=traces))
    basis = find_expected([tmp_path / "none"], tmp_path, run=data.finished(TIMES))
    entry = basis.expected[COPY].entry
    assert entry
    assert (entry.run, entry.kernels[0].name) == (FIRST, "of_2")


def test_only_what_was_measured_is_to_be_accepted_as_well(tmp_path: Path) -> None:
    accept(data.finished(TIMES), tmp_path, reason="first numbers", by="Ann")
    run = data.finished({**TIMES, "fill": 50.0, "gather": 70.0, "scan": 80.0})
    ended = zip(run.results, (Status.OK, Status.OK, Status.SKIPPED, Status.ERROR), strict=True)
    run = run.having(results=[replace(each, status=status) for each, status in ended])
    run = find_expected([tmp_path], tmp_path / "none", run=run).hold(run)
    told = "1 of 2 measured have no baseline entry for nvidia-h200 yet: accept them as well"
    assert [*gaps(run, ())] == [told]
    assert [*gaps(run.having(results=run.results[:1] + run.results[2:]), ())] == []
    assert [*gaps(replace(run, settings=replace(run.settings, check_only=True)), ())] == []


def test_what_has_no_number_or_no_decision_is_one_line_with_its_command(tmp_path: Path) -> None:
    run = data.finished({"copy": 1.0, "fill": 50.0, "scan": 80.0})
    ended = zip(run.results, (Status.DISTURBED, Status.OK, Status.SKIPPED), strict=True)
    run = run.having(results=[replace(r, status=end, reason="taken") for r, end in ended])
    (told,) = gaps(run, ())
    assert told.startswith("1 of 2 ")
    assert "taken" in told
    assert shlex.split(told.rpartition("; ")[2])[-1] == COPY
    unclear = Verdict(variant=run.variants[1].id, word=Word.UNCLEAR)
    same = replace(unclear, word=Word.SAME, reasons=(because("counted", count=1),))
    (told,) = gaps(run.having(results=()), [same, replace(same, in_turns=True)])
    assert told.startswith("1 variant compared with the first run of each here, for want of a")
    (told,) = gaps(replace(run, against=Revision(commit="abc", name="main")), [unclear])
    assert (told[:7], told.endswith(" --perf-against=abc")) == ("2 of 2 ", True)


def test_pairs_and_claims_count_before_they_begin() -> None:
    run = data.finished(TIMES)
    (result,), (entry,), (one,) = run.results, entries_of(run).values(), run.variants
    counted = replace(one.variant, case=replace(one.variant.case, regime=Regime.EXACT))
    basis = Basis(expected={COPY: Expected(entry=entry)})
    bare = basis.hold(replace(run, variants=data.ran(counted)))
    forecast = Forecast(None, bare, 1, TimeLimit())
    forecast.plan([counted], 3, ())
    left_s = forecast.took(result, needs_pairs=True)
    forecast.claims["c"] = replace(data.TWICE, faster=COPY, than=COPY)
    both_s, each_s = forecast.left_s(), result.wall_s / (1 + len(result.evidence))
    forecast.end_pairs()
    assert both_s - left_s == pytest.approx(14 * each_s)
    assert both_s - forecast.left_s() == pytest.approx(2 * each_s)


def test_the_time_left_is_learned_as_a_run_goes_on() -> None:
    run = data.finished({"copy": 100.0, "fill": 50.0})
    variants, (first, second) = [one.variant for one in run.variants], run.results
    found = []
    limit = TimeLimit(started=time.monotonic() - 7.0)
    for slower in (1, 10):
        forecast = Forecast(run, run, 1, limit)
        forecast.plan(variants, len(first.evidence), frozenset())
        whole_s = forecast.left_s()
        left_s = forecast.took(replace(first, wall_s=slower * first.wall_s))
        end_s = forecast.took(second)
        found.append((whole_s - end_s, left_s - end_s))
        assert forecast.said == [pytest.approx((7.0, whole_s), abs=5.0)]
    (whole_s, half_s), (_, slow_s) = found
    assert (whole_s - half_s, half_s) == pytest.approx((first.wall_s, second.wall_s))
    assert slow_s > 1.5 * half_s
    forecast.plan(variants[:1], 3, {variants[0].id})  # in pairs, until it needs no more
    three_s, one_s, none_s = (forecast.took(first, steps) - end_s for steps in (3, 1, 0))
    assert (three_s, none_s) == pytest.approx((3 * one_s, 0.0), abs=0.01 * one_s)
    assert Forecast(run, run, 1, replace(limit, seconds=7.1)).left_s() < end_s
    forecast = Forecast(run, run, 1, replace(limit, seconds=500.0))
    forecast.is_cut = True
    assert forecast.left_s() == pytest.approx(493.0, abs=5.0)


# A run whose variants belong to several SKUs: gangs of GPUs and compilation targets.


TWO = replace(data.FACTS, gpus=2, environment={**data.FACTS.environment, "triton": "3.7.1"})


def gang(ranks: int) -> Variant:
    plain = data.variant("all_reduce", ranks)
    return replace(plain, case=replace(plain.case, ranks="n", needs=()))


def compiled() -> Variant:
    plain = data.variant("kernel", 1)
    axes = (*plain.case.axes, "target")
    case = replace(plain.case, axes=axes, target="target", regime=Regime.EXACT)
    return replace(plain, case=case, axes={"n": 1, "target": "sm_90a"})


def a_run() -> Run:
    copy, pair, kernel = data.variant("copy", 1024), gang(2), compiled()
    counted = Evidence(slot=0, seed=0, unit=data.UNIT, exact={"registers": 40.0})
    results = (
        data.result(copy.id, 100.0),
        data.result(pair.id, 50.0),
        Result(variant=kernel.id, status=Status.OK, evidence=(counted,)),
    )
    run = data.planned(copy, pair, kernel)
    return replace(run, facts=TWO, finished="2026-11-21T10:40:00+00:00").having(results=results)


def test_each_variant_is_accepted_for_and_compared_with_its_own_sku(tmp_path: Path) -> None:
    copy, kernel = data.variant("copy", 1024).id, compiled().id
    # What has no baseline of its SKU is told.
    accept(a_run(), tmp_path, reason="first", by="t", select=["memory.copy"])
    basis = find_expected([tmp_path], tmp_path / "none", run=a_run())
    assert [name for name, each in basis.expected.items() if each.entry] == [copy]
    told = " ".join(basis.notes)
    assert {"nvidia-h200-x2", "sm_90a"} <= set(re.findall(r"[\w-]+", told))
    assert "no earlier run on this device" in told
    accept(a_run(), tmp_path, reason="second", by="t")
    assert {path.name for path in tmp_path.iterdir()} == {"nvidia-h200", "nvidia-h200-x2", "sm_90a"}
    basis = find_expected([tmp_path], tmp_path / "none", run=a_run())
    entries = [each.entry for each in basis.expected.values()]
    assert [bool(entry and entry.state) for entry in entries] == [True, True, False]
    assert {each.source for each in basis.expected.values()} == {
        "baseline nvidia-h200",
        "baseline nvidia-h200-x2",
        "accepted machine code for sm_90a",
    }
    assert not basis.notes
    # Another compiler is another environment, and no other product.
    other = replace(a_run(), facts=replace(TWO, environment={"triton": "3.6.0"}))
    expected = find_expected([tmp_path], tmp_path / "none", run=other).expected
    assert not any(each.why_not for each in expected.values())
    assert expected[kernel].environment == {**TWO.environment}
