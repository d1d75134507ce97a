"""What a run is compared with, and what no result may exceed."""

from __future__ import annotations

from pathlib import Path

import pytest
import store_data as data
from msgspec.structs import replace

from perfsuite.judge.noise import entries_of
from perfsuite.judge.peaks import peaks_of
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Expected,
    Result,
    Status,
    VariantRun,
    Verdict,
    Word,
    Work,
)
from perfsuite.run.accept import accept
from perfsuite.run.expected import Basis, find_expected, plausible, rank, source_of, unaccepted
from perfsuite.run.run import Judging, entries_in
from perfsuite.store.runs import RunFile

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
    ("before", "fails"),
    [
        ({"fast": 100.0, "slow": 250.0}, True),
        ({"fast": 100.0, "slow": 150.0}, False),
        ({"fast": 100.0}, False),
    ],
)
def test_a_broken_claim_fails_only_if_it_held_before(
    before: dict[str, float], *, fails: bool
) -> None:
    fast, slow = (data.variant(case, 1024).id for case in ("fast", "slow"))
    claim = ClaimInstance(
        id="c", pack="memory", name="c", faster=fast, than=slow, by=2.0, source="s"
    )
    broken = ClaimVerdict(claim="c", word=ClaimWord.BROKEN, required=2.0, source="s", fails=True)
    entries = entries_of(data.finished(before))
    basis = Basis(expected={name: Expected(entry=entry) for name, entry in entries.items()})
    run = replace(data.finished({"fast": 100.0, "slow": 150.0}), instances=(claim,))
    (found,) = Judging(basis).whole(basis.hold(run), {}, [broken]).claims
    assert found.fails is fails


def test_all_entries_of_a_sku_are_known_whatever_is_run(tmp_path: Path) -> None:
    accept(data.finished({"copy": 100.0, "fill": 50.0}), tmp_path, reason="first", by="Ann")
    known = find_expected([tmp_path], tmp_path, run=data.finished(TIMES)).known
    assert {entry.variant.partition("[")[0] for entry in known} == {"memory.copy", "memory.fill"}


def test_without_baseline_and_earlier_run_all_is_new(tmp_path: Path) -> None:
    basis = find_expected([tmp_path / "baselines"], tmp_path, run=data.finished(TIMES))
    run = basis.hold(data.finished(TIMES))
    assert (entries_in(run), source_of(run)) == ({}, "")
    assert "no earlier run" in basis.notes[0]


def keep(folder: Path, run_id: str, time_us: float, word: Word) -> None:
    """Store a finished run of one variant that was given this word."""
    run = data.finished({"copy": time_us}, run_id=run_id)
    file = RunFile.create(folder, run)
    for result in run.results:
        file.append(result)
    file.finish(run.having(verdicts=[Verdict(variant=COPY, word=word)]))


def center_of(folder: Path) -> float:
    """Return the time that a run of now would be compared with."""
    run = data.finished(TIMES)
    (entry,) = entries_in(find_expected([folder / "none"], folder, run=run).hold(run)).values()
    return entry.metrics["time_us"].center


def test_what_was_slower_or_unclear_counts_only_where_no_other_run_does(tmp_path: Path) -> None:
    keep(tmp_path, "20260101-000000-aaaa", 130.0, Word.UNCLEAR)
    unclear_alone = center_of(tmp_path)
    keep(tmp_path, "20260101-000001-aaaa", 100.0, Word.SAME)
    decided = center_of(tmp_path)
    keep(tmp_path, "20260101-000002-aaaa", 140.0, Word.SLOWER)
    keep(tmp_path, "20260101-000003-aaaa", 130.0, Word.UNCLEAR)
    assert unclear_alone > decided == center_of(tmp_path)
    basis = find_expected([tmp_path / "none"], tmp_path, run=data.finished(TIMES))
    assert source_of(basis.hold(data.finished(TIMES))) == "runs up to 20260101-000003-aaaa"
    assert basis.previous is not None
    # What a report draws as before is what was compared with.
    assert entries_of(basis.previous)[COPY].metrics["time_us"].center == decided


def test_only_what_was_measured_is_to_be_accepted_as_well(tmp_path: Path) -> None:
    accept(data.finished(TIMES), tmp_path, reason="first numbers", by="Ann")
    run = data.finished({**TIMES, "fill": 50.0, "gather": 70.0, "scan": 80.0})
    ended = zip(run.results, (Status.OK, Status.OK, Status.SKIPPED, Status.ERROR), strict=True)
    run = run.having(results=[replace(each, status=status) for each, status in ended])
    run = find_expected([tmp_path], tmp_path / "none", run=run).hold(run)
    told = "1 of 2 measured have no baseline entry for nvidia-h200 yet: accept them as well"
    assert [*unaccepted(run)] == [told]
    assert [*unaccepted(run.having(results=run.results[:1] + run.results[2:]))] == []
    assert [*unaccepted(replace(run, settings=replace(run.settings, check_only=True)))] == []
