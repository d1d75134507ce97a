"""What a run is compared with, and what no result may exceed."""

from __future__ import annotations

from pathlib import Path

import store_data as data
from msgspec.structs import replace

from perfsuite.judge.noise import entries_of
from perfsuite.judge.peaks import peaks_of
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Result,
    Status,
    Verdict,
    Word,
    Work,
)
from perfsuite.run.accept import accept
from perfsuite.run.expected import Yardstick, find_yardstick
from perfsuite.store.runs import RunFile

TIMES = {"copy": 100.0}


def yardstick_of(work: Work | None) -> tuple[Yardstick, Result]:
    """Return a yardstick that knows one variant of this work, and a result of 100 us."""
    variant = replace(data.variant("copy", 64), work=work)
    yardstick = Yardstick(entries={}, peaks=peaks_of("nvidia-h200"), variants={variant.id: variant})
    result = Result(variant=variant.id, status=Status.OK, evidence=(data.evidence(100.0),))
    return yardstick, result


def test_a_rate_that_the_hardware_has_is_plausible() -> None:
    yardstick, result = yardstick_of(Work(read_bytes=2e8, write_bytes=2e8))
    assert yardstick.plausible(result) is result


def test_a_rate_beyond_the_ceiling_is_an_error_of_the_case() -> None:
    yardstick, result = yardstick_of(Work(read_bytes=2.5e8, write_bytes=2.5e8))
    refused = yardstick.plausible(result)
    assert refused.status is Status.ERROR
    assert "115% of the measured ceiling" in refused.reason


def test_confirmation_prefers_the_baselines_unit_then_another_than_the_screens() -> None:
    (entry,) = entries_of(data.finished(TIMES)).values()
    (home,) = entry.metrics["time_us"].values
    yardstick = Yardstick(entries={entry.variant: entry}, peaks=peaks_of("nvidia-h200"))
    process = replace(data.evidence(100.0), unit="screened")
    screened = Result(variant=entry.variant, status=Status.OK, evidence=(process,))
    units = (home, "another", "screened")
    assert [yardstick.rank(screened, unit) for unit in units] == [0, 1, 2]
    assert [yardstick.rank(None, unit) for unit in units] == [0, 0, 0]


def test_all_entries_of_a_sku_are_known_whatever_is_run(tmp_path: Path) -> None:
    root = tmp_path / "baselines"
    run = data.finished({"copy": 100.0, "fill": 50.0})
    accept(run, root, reason="first numbers", by="Ann")
    found = find_yardstick([root], tmp_path, run=data.finished(TIMES))
    assert {entry.variant.partition("[")[0] for entry in found.known} == {
        "memory.copy",
        "memory.fill",
    }


def is_excused(before: dict[str, float]) -> bool:
    """Say whether a broken "fast is twice as fast as slow" fails nothing, given earlier times."""
    fast, slow = (data.variant(case, 1024) for case in ("fast", "slow"))
    entries = entries_of(data.finished(before))
    instance = ClaimInstance(
        id="c", pack="memory", name="c", faster=fast.id, than=slow.id, by=2.0, source="s"
    )
    verdict = ClaimVerdict(
        claim="c", word=ClaimWord.BROKEN, reason="", required=2.0, source="s", fails=True
    )
    yardstick = Yardstick(entries=entries, peaks=peaks_of("nvidia-h200"))
    return not yardstick.excused([verdict], [instance])[0].fails


def test_a_broken_claim_fails_only_if_it_held_before() -> None:
    assert not is_excused({"fast": 100.0, "slow": 250.0})
    assert is_excused({"fast": 100.0, "slow": 150.0})
    assert is_excused({"fast": 100.0})


def test_without_baseline_and_earlier_run_all_is_new(tmp_path: Path) -> None:
    found = find_yardstick([tmp_path / "baselines"], tmp_path, run=data.finished(TIMES))
    assert (dict(found.entries), found.source) == ({}, "")
    assert "no earlier run" in found.notes[0]


def keep(folder: Path, run_id: str, time_us: float, word: Word) -> None:
    """Store a finished run of one variant that was given this word."""
    run = data.finished({"copy": time_us}, run_id=run_id)
    verdict = Verdict(variant=data.variant("copy", 1024).id, word=word, reason="")
    file = RunFile.create(folder, run)
    for result in run.results:
        file.append(result)
    file.finish(run.having(verdicts=(verdict,)))


def center_of(folder: Path) -> float:
    """Return the time that a run of now would be compared with."""
    found = find_yardstick([folder / "baselines"], folder, run=data.finished(TIMES))
    (entry,) = found.entries.values()
    return entry.metrics["time_us"].center


def test_without_baseline_the_last_run_on_this_unit_counts(tmp_path: Path) -> None:
    keep(tmp_path, "20260101-000000-aaaa", 100.0, Word.NEW)
    found = find_yardstick([tmp_path / "baselines"], tmp_path, run=data.finished(TIMES))
    assert found.source == "runs up to 20260101-000000-aaaa"
    assert found.previous is not None
    assert set(found.entries) == {data.variant("copy", 1024).id}


def test_what_was_slower_or_unclear_is_no_yardstick_where_another_run_was_neither(
    tmp_path: Path,
) -> None:
    keep(tmp_path, "20260101-000000-aaaa", 130.0, Word.UNCLEAR)
    unclear_alone = center_of(tmp_path)
    keep(tmp_path, "20260101-000001-aaaa", 100.0, Word.SAME)
    decided = center_of(tmp_path)
    keep(tmp_path, "20260101-000002-aaaa", 140.0, Word.SLOWER)
    keep(tmp_path, "20260101-000003-aaaa", 130.0, Word.UNCLEAR)
    assert unclear_alone > decided
    assert center_of(tmp_path) == decided
    previous = find_yardstick([tmp_path / "none"], tmp_path, run=data.finished(TIMES)).previous
    assert previous is not None
    assert previous.id == "20260101-000003-aaaa"
    # What a report draws as before is what was compared with.
    assert entries_of(previous)[data.variant("copy", 1024).id].metrics["time_us"].center == decided


def test_only_what_was_measured_is_to_be_accepted_as_well(tmp_path: Path) -> None:
    root = tmp_path / "baselines"
    accept(data.finished(TIMES), root, reason="first numbers", by="Ann")
    run = data.finished({**TIMES, "fill": 50.0, "gather": 70.0, "scan": 80.0})
    ended = zip(run.results, (Status.OK, Status.OK, Status.SKIPPED, Status.ERROR), strict=True)
    run = run.having(results=tuple(replace(each, status=status) for each, status in ended))
    found = find_yardstick([root], tmp_path, run=run)
    told = "1 of 2 measured have no baseline entry for nvidia-h200 yet: accept them as well"
    assert found.unaccepted(run) == (told,)
    rest = run.having(results=run.results[:1] + run.results[2:])
    assert found.unaccepted(rest) == ()
    assert not any("accept" in note for note in found.notes)
    checked = replace(run, settings=replace(run.settings, check_only=True))
    assert found.unaccepted(checked) == ()
