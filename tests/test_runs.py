"""Run files are whole or not at all, resumed after any tear, and found again."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from store_data import (
    FACTS,
    OTHER_UNIT,
    RUN_ID,
    SKU,
    UNIT,
    entry_of,
    evidence,
    file_size_limit,
    finished,
    kept,
    planned,
    ran,
    result,
    variant,
)

from perfsuite import model
from perfsuite.boundary import StoreError
from perfsuite.judge.noise import entries_of
from perfsuite.store.baselines import baseline_text, read_pack
from perfsuite.store.runs import (
    RunFile,
    last_run,
    list_runs,
    load_run,
    next_run_id,
    read_run,
    run_path,
    unfinished,
)

COPY = variant("copy", 1024)
CLAIM = b'"claims":[{"claim":"memory.c","word":"held","required":2,"source":"x"}]'
NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
RUN = finished({"copy": 12.5})


def store(folder: Path, run: model.Run = RUN) -> Path:
    """Write a finished run; return its path."""
    return run_path(folder, kept(folder, run).id)


def interrupted(folder: Path) -> Path:
    """Write a run that measured one variant and was killed."""
    with RunFile.create(folder, planned(COPY)) as file:
        file.append(result(COPY.id, 12.5))
    return file.path


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
    (tmp_path / "runs").mkdir()
    for name in (there, "20200101-000000-00000000", "of-another-machine"):
        (tmp_path / "runs" / f"{name}.jsonl").touch()
    ids = {next_run_id(tmp_path, NOW) for _ in range(20)}
    assert len(ids) > 1
    assert all(each.startswith(expected) for each in ids)
    if expected.startswith("20261121"):
        assert next_run_id(tmp_path, NOW.replace(microsecond=500)) > max(ids)


def test_what_is_stored_is_what_is_loaded(tmp_path: Path) -> None:
    block = model.Block(time_us=(12.3456789,), cycles=(24691357.8,), start_s=1.23456789)
    process = replace(evidence(1.0), blocks=(block,))
    verdict = model.Verdict(variant=COPY.id, word=model.Word.NEW, reason="first contact")
    variants = tuple(variant("copy", n) for n in range(1, 200))
    asked = replace(RUN, variants=ran(*variants, COPY))
    with RunFile.create(tmp_path, asked) as file:
        start = file.path.read_bytes()
        stored = file.append(replace(RUN.results[0], evidence=(process,)))
        assert load_run(file.path).results == (stored,), "on disk when append returns"
        named = replace(asked, finished="", notes=("hot",))
        ended = file.finish(named.having(verdicts=(verdict,)))
    (found,) = stored.evidence[0].blocks
    assert (found.time_us, found.cycles, found.start_s) == ((12.3457,), (24691400.0,), 1.2346)
    assert load_run(file.path) == ended
    assert (ended.results, ended.verdicts, ended.notes) == ((stored,), (verdict,), ("hot",))
    assert datetime.fromisoformat(ended.finished).tzinfo
    assert start.count(b"Copy n floats.") == 1, "a case stands once in the plan"
    assert file.path == tmp_path / "runs" / f"{RUN_ID}.jsonl"
    with pytest.raises(StoreError, match="closed"):
        file.append(result(COPY.id, 1.0))


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


def test_what_is_finished_or_going_on_is_not_resumed(tmp_path: Path) -> None:
    path = store(tmp_path)
    with pytest.raises(StoreError, match="nothing to resume"):
        RunFile.resume(path)
    assert unfinished(tmp_path) == ()
    path.write_bytes(path.read_bytes()[:-5])
    with RunFile.resume(path):
        with pytest.raises(StoreError, match="in use by another process"):
            RunFile.resume(path)
        assert unfinished(tmp_path) == ()
    assert unfinished(tmp_path) == (path,)
    with pytest.raises(StoreError, match="File exists"):
        RunFile.create(tmp_path, RUN)
    for reads in (load_run, RunFile.resume):
        with pytest.raises(StoreError, match="No such file"):
            reads(tmp_path / "none.jsonl")


def test_what_cannot_be_written_leaves_the_file_whole(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(StoreError, match="File too large"):
        RunFile.create(tmp_path, planned(COPY))
    assert list_runs(tmp_path) == ()
    with RunFile.create(tmp_path, planned(COPY)) as file:
        before = file.path.read_bytes()
        bad = replace(evidence(1.0), error=float("nan"))
        with pytest.raises(StoreError, match="cannot store"):
            file.append(model.Result(variant=COPY.id, status=model.Status.OK, evidence=(bad,)))
        with file_size_limit(len(before) + 10), pytest.raises(StoreError, match="File too large"):
            file.append(result(COPY.id, 1.0))
        assert file.path.read_bytes() == before
        file.append(result(COPY.id, 1.0))
        assert file.path.stat().st_size - len(before) < 5_500
    assert len(load_run(file.path).results) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The text of a run with one result: header, plan, result, judged, end."""
    return store(tmp_path_factory.mktemp("whole")).read_bytes()


@pytest.mark.parametrize(
    ("line", "old", "new", "said"),
    [
        (0, b'"kind":"header",', b"", "begins with no header"),
        (0, b'"header"', b'"result"', "begins with no header"),
        (0, b"run/1", b"run/2", "'perfsuite.run/2'; this perfsuite reads"),
        (0, b"run/1", b"x" * 9000, "'; this perfsuite reads"),
        (1, b'"target":""', b'"target":"zz"', "no axis 'zz', its target"),
        (1, b'"cases":{"memory.copy"', b'"cases":{"memory.kopy"', "x, line 2"),
        (1, b'"variants":[{', b'"variants":[3,{', "x, line 2"),
        (1, b'"kind":"plan",', b'"kind":"plan","id":"../x",', "unknown field `id`"),
        (2, b"memory.copy", b"memory.kopy", "the run has no variant 'memory.kopy"),
        (1, b'"plan"', b'"header"', "x, line 2"),
        (2, b'"ok"', b'"fine"', "x, line 3"),
        (2, b'"variant"', b"oops", "x, line 3, column 18"),
        (3, b'"claims":[]', CLAIM, "the run has no claim 'memory.c'"),
        (4, b'"wall_s"', b'"wall"', "unknown field `wall`"),
        (4, b'"kind":"end"', b'"kind":"fin"', "unexpected line of kind 'fin'"),
        (4, b"end", b"x" * 9000, "unexpected line of kind 'xxx"),
    ],
)
def test_a_damaged_run_file_is_refused(
    whole: bytes, line: int, old: bytes, new: bytes, said: str
) -> None:
    lines = whole.split(b"\n")
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    with pytest.raises(StoreError) as caught:
        read_run(b"\n".join(lines), where="x")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500
    behind = whole + whole.split(b"\n")[min(line, 2)] + b"\n"
    with pytest.raises(StoreError, match="unexpected line of kind"):
        read_run(behind, where="x")


@settings(max_examples=200, deadline=None)
@given(data=st.data(), is_run=st.booleans(), junk=st.binary(max_size=6))
def test_a_damaged_file_is_read_or_refused(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, *, data: Any, is_run: bool, junk: bytes
) -> None:
    sheet = baseline_text("fake", "memory", {COPY.id: entry_of(COPY.id)})
    text = whole if is_run else sheet
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    path = tmp_path_factory.getbasetemp() / "fake" / "memory.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sheet)
    found = read_pack(path.parent, "memory")
    assert found == {COPY.id: entry_of(COPY.id)}
    assert baseline_text("fake", "memory", found) == sheet
    damaged = text[:start] + junk + text[end:]
    path.write_bytes(damaged)
    with suppress(StoreError):
        if is_run:
            assert read_run(damaged, where="x").started
        else:
            assert all(each.metrics for each in read_pack(path.parent, "memory").values())


def test_the_last_run_is_of_the_same_sku_and_unit_and_whole(tmp_path: Path) -> None:
    ids = [f"20261121-10300{second}-aaaa" for second in range(9)]
    runs = [replace(RUN, id=each) for each in ids]
    paths = [store(tmp_path, run) for run in runs[:2]]
    store(tmp_path, replace(runs[2], facts=replace(FACTS, unit=OTHER_UNIT)))
    store(tmp_path, replace(runs[3], sku=replace(SKU, slug="nvidia-h100")))
    store(tmp_path, replace(runs[4], settings=model.Settings(check_only=True)))
    interrupted(tmp_path).rename(tmp_path / "runs" / f"{ids[5]}.jsonl")
    text = paths[0].read_text(encoding="utf-8").replace('"busy_s":0.0', '"busy_s":1e308')
    paths[0].with_name(f"{ids[6]}.jsonl").write_text(text, encoding="utf-8")
    paths[0].with_name(f"{ids[7]}.jsonl").write_bytes(b"\x00" * 64)
    paths[0].with_name(f"{ids[8]}.jsonl").symlink_to("what was cleaned away")
    assert [path.stem for path in list_runs(tmp_path)] == ids[::-1]
    assert [path.stem for path in unfinished(tmp_path)] == [ids[7], ids[5]]
    found = [last_run(tmp_path, sku=SKU.slug, unit=UNIT, before=each) for each in ("", *ids[1::-1])]
    assert [run and run.id for run in found] == [ids[1], ids[0], None]


def with_evidence(*evidence: model.Evidence) -> model.Run:
    return RUN.having(results=(replace(RUN.results[0], evidence=evidence),))


def test_exact_metrics_keep_every_digit_and_the_worst_process() -> None:
    worst = replace(evidence(1.0, slot=9), exact={"peak_bytes": 134217731.0, "launches": 3.0})
    metrics = entries_of(with_evidence(*RUN.results[0].evidence, worst))[COPY.id].metrics
    assert (metrics["peak_bytes"].center, metrics["peak_bytes"].unit) == (134217731.0, "bytes")
    assert metrics["launches"].unit == "count"
    assert metrics["peak_bytes"].values == {}


def test_what_was_measured_again_counts_as_it_ended() -> None:
    again = (result(COPY.id, 99.0, status=model.Status.ERROR), *RUN.results)
    assert entries_of(RUN.having(results=again)).keys() == {COPY.id}
    assert entries_of(with_evidence(replace(evidence(1.0), blocks=(), exact={}))) == {}


def test_an_entry_says_how_it_was_measured() -> None:
    processes = RUN.results[0].evidence
    mixed = with_evidence(*processes, replace(processes[0], launches=9))
    assert entries_of(mixed)[COPY.id].sampling is None
    blocks = (model.Block(time_us=(1.0, 1.1)), model.Block(time_us=(), voided=4))
    one_clock = with_evidence(replace(evidence(1.0), blocks=blocks, exact={}))
    assert entries_of(one_clock)[COPY.id].metrics.keys() == {"time_us"}
