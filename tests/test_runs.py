"""Run files: on disk before the next variant starts, whatever happens then."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from store_data import (
    FACTS,
    OTHER_UNIT,
    RUN_ID,
    SKU,
    UNIT,
    evidence,
    file_size_limit,
    finished,
    planned,
    ran,
    result,
    variant,
)

from perfsuite.boundary import StoreError
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    Block,
    Health,
    Result,
    Run,
    Sampling,
    Settings,
    Stage,
    Status,
    Verdict,
    Word,
)
from perfsuite.store.runs import (
    RunFile,
    last_run,
    list_runs,
    load_run,
    new_run_id,
    next_run_id,
    run_path,
    unfinished,
)

GOLD = Path(__file__).parent / "gold" / "run-1.jsonl"
COPY = variant("copy", 1024)


def store(folder: Path, run: Run) -> Path:
    """Write a finished run as the runner does."""
    with RunFile.create(folder, run) as file:
        for each in run.results:
            file.append(each)
        file.finish(run)
    return file.path


def interrupted(folder: Path) -> Path:
    """Write a run that measured one variant and was killed."""
    with RunFile.create(folder, planned(COPY)) as file:
        file.append(result(COPY.id, 12.5))
    return file.path


def test_ids_sort_by_time_and_differ() -> None:
    now = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
    ids = {new_run_id(now) for _ in range(20)}
    assert len(ids) > 1
    assert all(each.startswith("20261121-103000-0000") for each in ids)
    assert new_run_id(now.replace(microsecond=500)) > max(ids)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("20261121-102959-abcd1234", "20261121-103000-0000"),
        ("20270101-000059-abcd1234", "20270101-000100-0000"),
        ("99991231-235959-abcd1234", "20261121-103000-0000"),
        ("shard-1", "20261121-103000-0000"),
    ],
)
def test_an_id_sorts_behind_all_that_are_there(tmp_path: Path, there: str, expected: str) -> None:
    now = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
    (tmp_path / "runs").mkdir()
    for name in (there, "20200101-000000-00000000", "of-another-machine"):
        (tmp_path / "runs" / f"{name}.jsonl").touch()
    assert next_run_id(tmp_path, now).startswith(expected)


def test_what_is_finished_is_what_is_loaded(tmp_path: Path) -> None:
    run = finished({"copy": 12.5})
    verdict = Verdict(variant=COPY.id, word=Word.NEW, reason="first contact")
    with RunFile.create(tmp_path, run) as file:
        stored = file.append(run.results[0])
        ended = file.finish(
            replace(run, notes=("hot",), units={UNIT: "NVIDIA H200"}).having(verdicts=(verdict,))
        )
    assert load_run(file.path) == ended
    assert ended.results == (stored,)
    assert (ended.verdicts, ended.notes) == ((verdict,), ("hot",))
    assert file.path == tmp_path / "runs" / f"{RUN_ID}.jsonl"


def test_a_result_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        stored = file.append(result(COPY.id, 12.5))
        assert load_run(file.path).results == (stored,)


def test_samples_have_six_digits(tmp_path: Path) -> None:
    block = Block(time_us=(12.3456789,), cycles=(24691357.8,), start_s=1.23456789)
    process = replace(evidence(1.0), blocks=(block,))
    with RunFile.create(tmp_path, planned(COPY)) as file:
        stored = file.append(Result(variant=COPY.id, status=Status.OK, evidence=(process,)))
    (found,) = stored.evidence[0].blocks
    assert (found.time_us, found.cycles, found.start_s) == ((12.3457,), (24691400.0,), 1.2346)


def test_a_result_of_a_confirmed_variant_takes_five_kilobytes(tmp_path: Path) -> None:
    processes = tuple(evidence(12.3456789, slot=slot, samples=16) for slot in range(3))
    with RunFile.create(tmp_path, planned(COPY)) as file:
        before = file.path.stat().st_size
        file.append(Result(variant=COPY.id, status=Status.OK, evidence=processes))
        assert file.path.stat().st_size - before < 5_500


def test_finishing_sets_the_time_if_the_run_has_none(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        ended = file.finish(planned(COPY))
    assert datetime.fromisoformat(ended.finished).tzinfo


def test_a_torn_last_line_is_dropped_with_a_note(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"result","variant":"mem')
    note = "dropped a torn last line of 31 bytes"
    assert load_run(path).notes == (note,)
    with RunFile.resume(path) as file:
        assert [each.variant for each in file.run.results] == [COPY.id]
        assert path.read_bytes() == whole
        ended = file.finish(replace(planned(COPY), notes=("resumed",)))
    assert ended.notes == (note, "resumed")
    assert load_run(path) == ended


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_file_torn_anywhere_after_its_plan_resumes(tmp_path: Path, share: float) -> None:
    path = interrupted(tmp_path)
    whole = path.read_bytes()
    start = whole.index(b'{"kind":"result"')
    path.write_bytes(whole[: start + int((len(whole) - start) * share)])
    with RunFile.resume(path) as file:
        assert (file.run.results, file.run.variants) == ((), ran(COPY))
        file.append(result(COPY.id, 12.5))
    assert len(load_run(path).results) == 1


def test_a_file_torn_in_its_plan_is_refused(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StoreError, match="line 1"):
        RunFile.resume(path)


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    path = store(tmp_path, finished({"copy": 1.0}))
    with pytest.raises(StoreError, match="nothing to resume"):
        RunFile.resume(path)


def test_a_run_torn_between_its_verdicts_and_its_end_is_unfinished(tmp_path: Path) -> None:
    path = store(tmp_path, finished({"copy": 1.0}))
    path.write_bytes(path.read_bytes()[:-5])
    assert unfinished(tmp_path) == (path,)
    with RunFile.resume(path) as file:
        ended = file.finish(finished({"copy": 1.0}))
    assert load_run(path).finished == ended.finished


def test_a_run_going_on_is_neither_resumed_nor_unfinished(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        with pytest.raises(StoreError, match="in use by another process"):
            RunFile.resume(file.path)
        assert unfinished(tmp_path) == ()
    assert unfinished(tmp_path) == (file.path,)


def test_an_id_is_used_once(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(StoreError, match="File exists"):
        RunFile.create(tmp_path, planned(COPY))


@pytest.mark.parametrize(
    "run_id", ["../x", "", ".hidden", "a/b", "a\n", "/x", "-x", "x" * 201, "\x1b"]
)
def test_ids_that_lead_elsewhere_are_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StoreError, match="cannot be a file name"):
        run_path(tmp_path, run_id)


def test_a_result_that_cannot_be_stored_leaves_the_file_whole(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        before = file.path.read_bytes()
        bad = replace(evidence(1.0), error=float("nan"))
        with pytest.raises(StoreError, match="cannot store"):
            file.append(Result(variant=COPY.id, status=Status.OK, evidence=(bad,)))
        assert file.path.read_bytes() == before


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        before = file.path.read_bytes()
        with file_size_limit(len(before) + 10), pytest.raises(StoreError, match="File too large"):
            file.append(result(COPY.id, 1.0))
        assert file.path.read_bytes() == before
        file.append(result(COPY.id, 1.0))
    assert len(load_run(file.path).results) == 1


def test_a_file_that_cannot_be_started_is_not_left_behind(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(StoreError, match="File too large"):
        RunFile.create(tmp_path, planned(COPY))
    assert list_runs(tmp_path) == ()


def test_a_closed_file_takes_nothing(tmp_path: Path) -> None:
    with RunFile.create(tmp_path, planned(COPY)) as file:
        pass
    with pytest.raises(StoreError, match="closed"):
        file.append(result(COPY.id, 1.0))


def test_missing_files_are_named(tmp_path: Path) -> None:
    for read in (load_run, RunFile.resume):
        with pytest.raises(StoreError, match="No such file"):
            read(tmp_path / "none.jsonl")
    assert list_runs(tmp_path) == ()


def test_the_last_run_is_of_the_same_sku_and_unit(tmp_path: Path) -> None:
    ids = [f"20261121-10300{second}-aaaa" for second in range(5)]
    store(tmp_path, finished({"copy": 1.0}, run_id=ids[0]))
    store(tmp_path, finished({"copy": 2.0}, run_id=ids[1]))
    other = finished({"copy": 3.0}, run_id=ids[2])
    store(tmp_path, replace(other, facts=replace(FACTS, unit=OTHER_UNIT)))
    store(tmp_path, replace(other, id=ids[3], sku=replace(SKU, slug="nvidia-h100")))
    store(tmp_path, replace(other, id=ids[4], settings=Settings(check_only=True)))
    found = last_run(tmp_path, sku="nvidia-h200", unit=UNIT)
    assert found is not None
    assert found.id == ids[1]
    assert [path.stem for path in list_runs(tmp_path)] == ids[::-1]


def test_the_last_run_is_older_than_before(tmp_path: Path) -> None:
    store(tmp_path, finished({"copy": 1.0}, run_id="20261121-103000-aaaa"))
    now = "20261121-103001-bbbb"
    store(tmp_path, finished({"copy": 1.0}, run_id=now))
    found = last_run(tmp_path, sku=SKU.slug, unit=UNIT, before=now)
    assert found is not None
    assert found.id == "20261121-103000-aaaa"
    assert last_run(tmp_path, sku=SKU.slug, unit=UNIT, before=found.id) is None


def test_a_file_that_cannot_be_opened_stops_no_other_run(tmp_path: Path) -> None:
    path = store(tmp_path, finished({"copy": 1.0}, run_id="20261121-103000-aaaa"))
    path.with_name("20261121-103001-bbbb.jsonl").symlink_to("what was cleaned away")
    found = last_run(tmp_path, sku=SKU.slug, unit=UNIT)
    assert found is not None
    assert found.id == path.stem
    assert unfinished(tmp_path) == ()


def test_unfinished_and_damaged_files_are_no_last_run(tmp_path: Path) -> None:
    path = store(tmp_path, finished({"copy": 1.0}, run_id="20261121-103000-aaaa"))
    interrupted(tmp_path / "other")
    (tmp_path / "other/runs" / f"{RUN_ID}.jsonl").rename(tmp_path / "runs/20261121-103001-b.jsonl")
    (tmp_path / "runs/20261121-103002-c.jsonl").write_bytes(b"\x00" * 64)
    for number, odd in enumerate(("1e308", "5e-324")):
        text = path.read_text(encoding="utf-8").replace('"busy_s":0.0', f'"busy_s":{odd}')
        assert odd in text
        path.with_name(f"20261121-10300{number + 3}-d.jsonl").write_text(text, encoding="utf-8")
    found = last_run(tmp_path, sku=SKU.slug, unit=UNIT)
    assert found is not None
    assert found.id == path.stem


def test_entries_hold_each_process_by_unit() -> None:
    (entry,) = entries_of(finished({"copy": 12.5})).values()
    time, cycles = entry.metrics["time_us"], entry.metrics["cycles"]
    assert (entry.variant, entry.run, entry.regime) == (COPY.id, RUN_ID, "paced")
    assert entry.state == FACTS.state
    assert entry.work_class in {"memory", "unknown"}
    assert (time.unit, cycles.unit, time.better) == ("us", "cycles", "lower")
    assert time.center == pytest.approx(12.5, rel=1e-3)
    assert 0 < time.within < 1e-3
    assert 0 <= time.between < 1e-3
    assert [len(metric.values[UNIT]) for metric in (time, cycles)] == [3, 3]
    ratios = [c / t for t, c in zip(time.values[UNIT], cycles.values[UNIT], strict=True)]
    assert ratios == pytest.approx([1980] * 3, rel=1e-5)


def test_exact_metrics_keep_every_digit_and_the_worst_process() -> None:
    worst = replace(evidence(1.0, slot=9), exact={"peak_bytes": 134217731.0, "launches": 3.0})
    run = finished({"copy": 1.0})
    more = replace(run.results[0], evidence=(*run.results[0].evidence, worst))
    metrics = entries_of(run.having(results=(more,)))[COPY.id].metrics
    assert (metrics["peak_bytes"].center, metrics["peak_bytes"].unit) == (134217731.0, "bytes")
    assert metrics["launches"].unit == "count"
    assert metrics["peak_bytes"].values == {}


def test_screen_and_confirmation_count_both() -> None:
    run = finished({"copy": 12.5})
    both = (*run.results, result(COPY.id, 12.5, stage=Stage.CONFIRM, unit=OTHER_UNIT))
    values = entries_of(run.having(results=both))[COPY.id].metrics["time_us"].values
    assert {unit: len(row) for unit, row in values.items()} == {UNIT: 3, OTHER_UNIT: 3}


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_stage_that_did_not_end_ok_has_no_entry(status: Status) -> None:
    run = finished({"copy": 12.5})
    bad = result(COPY.id, 12.5, stage=Stage.CONFIRM, status=status)
    assert entries_of(run.having(results=(*run.results, bad))) == {}


def test_a_stage_measured_again_counts_as_it_ended() -> None:
    run = finished({"copy": 12.5})
    again = (result(COPY.id, 99.0, status=Status.ERROR), *run.results)
    assert entries_of(run.having(results=again)).keys() == {COPY.id}


def test_sampling_is_known_where_all_processes_agree() -> None:
    run = finished({"copy": 12.5})
    assert entries_of(run)[COPY.id].sampling == Sampling(launches=8, sets=1)
    processes = run.results[0].evidence
    mixed = replace(run.results[0], evidence=(*processes, replace(processes[0], launches=9)))
    assert entries_of(run.having(results=(mixed,)))[COPY.id].sampling is None


def test_a_device_with_one_clock_has_entries_of_time_alone() -> None:
    blocks = (Block(time_us=(1.0, 1.1)), Block(time_us=(), voided=4))
    process = replace(evidence(1.0), blocks=blocks, exact={})
    run = finished({"copy": 1.0})
    one = replace(run.results[0], evidence=(process,))
    assert entries_of(run.having(results=(one,)))[COPY.id].metrics.keys() == {"time_us"}


def test_a_variant_that_was_only_checked_has_no_entry() -> None:
    run = finished({"copy": 1.0})
    checked = replace(run.results[0], evidence=(replace(evidence(1.0), blocks=(), exact={}),))
    assert entries_of(run.having(results=(checked,))) == {}


def test_a_stored_run_of_version_1_is_still_read() -> None:
    run = load_run(GOLD)
    assert run.finished
    assert entries_of(run)["memory.copy[n=1024]"].metrics["time_us"].unit == "us"


def test_entry_remembers_the_load_it_was_measured_under() -> None:
    run = finished({"copy": 12.5})
    busy = [
        replace(block, health=Health(foreign_percent=40.0))
        for block in run.results[0].evidence[0].blocks
    ]
    evidence = tuple(replace(each, blocks=tuple(busy)) for each in run.results[0].evidence)
    loaded = run.having(results=(replace(run.results[0], evidence=evidence),))
    assert [entry.load for entry in entries_of(run).values()] == [0.0]
    assert [entry.load for entry in entries_of(loaded).values()] == [0.4]
