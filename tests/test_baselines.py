"""Baselines: what is accepted, what is refused, and files that are never half nor lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store_data import (
    FACTS,
    OTHER_UNIT,
    RUN_ID,
    SKU,
    UNIT,
    entry_of,
    file_size_limit,
    finished,
    ran,
    result,
)

from perfsuite import model
from perfsuite.boundary import StoreError, UsageError
from perfsuite.model import Status, Word, because
from perfsuite.run.accept import Accepted, NothingAcceptedError, accept
from perfsuite.run.expected import find_expected
from perfsuite.store.baselines import Baselines, baseline_text
from perfsuite.store.sku import sku_of

COPY, ADD = "memory.copy[n=1024]", "memory.add[n=1024]"
LATER = "20261122-103000-3f2a"
RUN = finished({"copy": 12.5})


def take(run: model.Run, root: Path, *select: str) -> Accepted:
    return accept(run, root, reason="first numbers", by="Ann", select=select)


def memory(root: Path) -> Path:
    return root / "nvidia-h200" / "memory.json"


def load(root: Path) -> Baselines:
    return Baselines.load([root], SKU)


def copy_entry(root: Path) -> model.BaselineEntry:
    return load(root).entries[COPY]


def again(time_us: float = 12.5, unit: str = UNIT, **changed: object) -> model.Run:
    """Return a later run of copy whose processes have something else."""
    run = finished({"copy": time_us}, unit=unit, run_id=LATER)
    processes = tuple(replace(each, **changed) for each in run.results[0].evidence)
    return run.having(results=(replace(run.results[0], evidence=processes),))


def judged(run: model.Run, word: Word, *reasons: model.Reason, **verdict: Any) -> model.Run:
    """Return a run of another commit than the first one's, with this verdict on it."""
    told = model.Verdict(variant=COPY, word=word, reasons=reasons, **verdict)
    return replace(run, commit="1" * 40).having(verdicts=(told,))


def against(run: model.Run, commit: str) -> model.Run:
    """Return a run that was the same in turns with a revision."""
    return replace(judged(run, Word.SAME, in_turns=True), against=model.Revision(commit, "main"))


def counted(**counters: float) -> model.Run:
    """Return a later run whose kernel was traced, and counted so."""
    kernel = model.TracedKernel(name="copy", count=1, duration_us=6.0, counters=counters)
    return again().having(traces=(model.Trace(variant=COPY, kernels=(kernel,)),))


def with_environment(run: model.Run) -> model.Run:
    return replace(run, facts=replace(run.facts, environment={"driver": "590.1"}))


def refusal(root: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        load(root)
    assert caught.value.remedy
    return caught.value


def test_what_is_accepted_is_loaded(tmp_path: Path) -> None:
    command = "pytest --perf -o perf_history=postgresql://ci:s3cret@host/db"
    run = replace(finished({"copy": 12.5, "add": 3.0}), command=command)
    done = accept(run, tmp_path, reason=" new\n driver ", by="Ann")
    baselines = load(tmp_path)
    assert set(done.added) == set(baselines.entries) == {COPY, ADD}
    assert (done.changed, done.unchanged, done.refused) == ({}, (), {})
    assert {path.name for path in done.written} == {"sku.json", "memory.json", f"{RUN_ID}.json"}
    entry, accepted = baselines.entries[COPY], baselines.entries[COPY].accepted
    assert entry.metrics["time_us"].center == pytest.approx(12.5, rel=1e-3)
    assert entry.metrics["peak_bytes"].center == 134217729
    assert (entry.state, entry.sampling) == (FACTS.state, model.Sampling(launches=8, sets=1))
    assert (accepted.by, accepted.reason) == ("Ann", "new driver")
    assert datetime.fromisoformat(accepted.when).tzinfo == UTC
    assert baselines.runs[RUN_ID].environment == FACTS.environment
    assert not [path for path in tmp_path.rglob("*.json") if "s3cret" in path.read_text()]
    text = memory(tmp_path).read_text()
    starts = [line.split(":")[0].strip() for line in text.splitlines() if '"center"' in line]
    assert starts == ['"cycles"', '"peak_bytes"', '"time_us"'] * 2
    assert list(json.loads(text)["variants"]) == [ADD, COPY]


def test_the_first_root_that_has_a_variant_wins(tmp_path: Path) -> None:
    take(RUN, tmp_path / "own")
    take(finished({"copy": 99.0, "add": 3.0}, run_id="shipped"), tmp_path / "pack")
    baselines = Baselines.load([tmp_path / "own", tmp_path / "none", tmp_path / "pack"], SKU)
    runs = {name: entry.run for name, entry in baselines.entries.items()}
    assert runs == {COPY: RUN_ID, ADD: "shipped"}


def test_what_moved_is_rewritten_and_the_rest_kept(tmp_path: Path) -> None:
    take(finished({"copy": 12.5, "add": 3.0, "other.gemm": 9.0}), tmp_path)
    before = memory(tmp_path).read_bytes()
    done = take(again(12.501), tmp_path)
    assert (done.written, done.unchanged) == ((), (COPY,))
    assert memory(tmp_path).read_bytes() == before
    done = take(again(12.6), tmp_path)
    assert done.changed == {COPY: "cycles +0.80 %; time_us +0.80 %"}
    runs = {name: entry.run for name, entry in load(tmp_path).entries.items()}
    assert runs == {COPY: LATER, ADD: RUN_ID, "other.gemm[n=1024]": RUN_ID}
    take(finished({"add": 4.0, "other.gemm": 10.0}, run_id=LATER), tmp_path)
    kept = [path.stem for path in (tmp_path / "nvidia-h200/runs").iterdir()]
    assert kept == [LATER], "what no entry refers to is dropped"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (again(), again(exact={"peak_bytes": 134217730.0}),
         "peak_bytes was 134217729 and is 134217730"),
        (again(), again(12.5, OTHER_UNIT, launches=16),
         "sampling was 8 launches over 1 input sets and is 16 launches over 1 input sets"),
        (again(artefact="aa"), again(artefact="bb"), "artefact recorded"),
        (again(artefact="aa"), judged(again(12.5, OTHER_UNIT, artefact="bb"), Word.FASTER),
         f"other code; values of other units go to history: {UNIT}"),
        (again(), again(artefact="bb"), "artefact recorded"),
        (again(), RUN.having(results=(replace(RUN.results[0], case_version=2),)),
         "case version was 1 and is 2"),
        (again(), again(exact={}), "metrics were cycles, peak_bytes, time_us; are cycles, time_us"),
        (again(), with_environment(again(12.5)), "environment: driver"),
        (counted(), counted(sectors_read=12.0), "counters recorded"),
        # Where the reference cannot be measured again, what is unclear takes its place.
        (again(), judged(again(14.0, OTHER_UNIT), Word.UNCLEAR, because("squashed", code="x")),
         f"other code; values of other units go to history: {UNIT}"),
        # Against a revision the verdict says nothing of the baseline.
        (again(unit=OTHER_UNIT), against(again(12.4), "a" * 40),
         f"other code; values of other units go to history: {OTHER_UNIT}"),
    ],
)  # fmt: skip
def test_a_change_of_an_entry_is_named(
    tmp_path: Path, old: model.Run, new: model.Run, said: str
) -> None:
    take(old, tmp_path)
    assert '"counters"' not in memory(tmp_path).read_text(), "there are none"
    assert take(new, tmp_path).changed == {COPY: said}
    assert ("history" not in said) or len(copy_entry(tmp_path).metrics["time_us"].values) == 1


def test_another_unit_adds_its_values(tmp_path: Path) -> None:
    take(RUN, tmp_path)
    done = take(again(12.6, OTHER_UNIT), tmp_path)
    time = copy_entry(tmp_path).metrics["time_us"]
    assert done.changed == {COPY: f"unit {OTHER_UNIT} added"}
    assert {unit: len(row) for unit, row in time.values.items()} == {UNIT: 3, OTHER_UNIT: 3}
    assert time.center == pytest.approx(12.55, rel=1e-3)
    assert time.between < 1e-3, "between processes of one unit, not between units"
    take(again(12.55), tmp_path)
    values = copy_entry(tmp_path).metrics["time_us"].values
    assert values[UNIT] == pytest.approx([12.55] * 3, rel=1e-3), "its own are replaced"
    assert values[OTHER_UNIT] == pytest.approx([12.6] * 3, rel=1e-3)


# What pairs say names the reference; what other pairs spoke for has no pairs of its own.
PAIRS, STALE = (because("same_in_turns", revision="r", code=f"commit {n * 7}") for n in "05")
MOVED = because("environment", code=f"commit {'0' * 7}", differing=("driver",))
IN_TURNS = model.Confirmation.IN_TURNS


@pytest.mark.parametrize(
    ("run", "cards", "told"),
    [
        (again(12.6, OTHER_UNIT), "both", f"unit {OTHER_UNIT} added"),
        (judged(again(12.6, OTHER_UNIT), Word.SAME_CODE, PAIRS, in_turns=True), "both",
         f"unit {OTHER_UNIT} added"),
        (against(again(12.6, OTHER_UNIT), "0" * 40), "both", f"unit {OTHER_UNIT} added"),
        (judged(again(12.6), Word.ENVIRONMENT, MOVED, confirmation=IN_TURNS), "own",
         "cycles +0.80 %; time_us +0.80 %"),
        (judged(again(12.6), Word.ENVIRONMENT, MOVED), "own", "cycles +0.80 %; time_us +0.80 %"),
        # At another commit without pairs of its own: nothing changes.
        *((judged(again(12.6, OTHER_UNIT), word, *why), "old", "without pairs: not added")
          for word, *why in ((Word.SAME,), (Word.UNCLEAR,), (Word.SAME_CODE, STALE),
                             (Word.ENVIRONMENT, MOVED))),
        (judged(again(12.6), Word.SAME), "old", None),
        (judged(again(12.6), Word.UNCLEAR), "old", "without pairs: not added"),
        # What is accepted and moved starts anew.
        (judged(again(14.0), Word.SLOWER), "own", "cycles +12.00 %; time_us +12.00 %"),
        (judged(again(14.0, OTHER_UNIT), Word.SLOWER), "other",
         f"other code; values of other units go to history: {UNIT}"),
    ],
)  # fmt: skip
def test_a_card_joins_an_entry_of_its_code_or_after_pairs_with_it(
    tmp_path: Path, run: model.Run, cards: str, told: str | None
) -> None:
    take(RUN, tmp_path)
    before = memory(tmp_path).read_bytes()
    done = take(run, tmp_path)
    baselines, entry = load(tmp_path), copy_entry(tmp_path)
    known = {"both": {UNIT, OTHER_UNIT}, "other": {OTHER_UNIT}}.get(cards, {UNIT})
    assert entry.cards == known
    if cards == "old":
        assert memory(tmp_path).read_bytes() == before
        assert (told or "") in done.refused.get(COPY, "")
        assert done.unchanged == (() if told else (COPY,))
        return
    assert done.changed == {COPY: told}
    # Side A stays the reference's commit, until a changed variant starts anew.
    assert entry.run == (LATER if run.verdicts and run.verdicts[0].word.moved else RUN_ID)
    (measured,) = {each.unit for each in run.results[0].evidence}
    assert entry.run_of([measured]) == LATER
    assert baselines.runs.keys() == {entry.run, LATER}
    assert baselines.runs[LATER].commit == run.commit


def test_cards_of_another_board_are_compared_and_told_apart(tmp_path: Path) -> None:
    mate = "0e41e026ed5c"
    boards = {UNIT: "692-2G520-0282-000", OTHER_UNIT: "692-2G520-0282-001", mate: ""}
    boards[mate] = boards[OTHER_UNIT]
    for unit in (UNIT, mate):
        run = replace(again(12.5, unit), id=f"{LATER}-{unit}", boards={unit: boards[unit]})
        take(with_environment(run) if unit == mate else run, tmp_path)
    for unit, driver in ((OTHER_UNIT, "580.159"), (mate, "590.1")):
        facts = replace(FACTS, unit=unit, identity={**FACTS.identity, "board": boards[unit]})
        now = replace(again(12.5, unit), facts=facts, boards={unit: boards[unit]})
        assert sku_of(facts).slug == SKU.slug
        expected = find_expected([tmp_path], tmp_path / "none", run=now).expected[COPY]
        assert expected.entry
        assert expected.entry.cards == {UNIT, mate}
        assert expected.elsewhere == expected.board_mates == {mate}
        # It is that of the card at hand, else of the reference.
        assert expected.environment["driver"] == driver


def test_a_slower_or_uncommitted_run_is_accepted_and_says_so(tmp_path: Path) -> None:
    take(finished({"copy": 12.5, "add": 3.0}), tmp_path)
    run = judged(finished({"copy": 13.0, "add": 3.0}, run_id=LATER), Word.SLOWER)
    run = run.having(verdicts=[*run.verdicts, model.Verdict(variant=ADD, word=Word.SAME)])
    assert str(take(replace(run, commit="9c1e-dirty"), tmp_path)) == (
        "0 added, 1 changed, 1 unchanged, 0 not accepted; "
        "1 of them slower than before, of code that is in no commit (9c1e-dirty)"
    )
    assert take(judged(again(12.0), Word.FASTER), tmp_path).caution == ""
    told = take(judged(again(11.0), Word.FASTER, confirmation=IN_TURNS), tmp_path).caution
    assert told == "1 decided beside the old code"


@pytest.mark.parametrize(
    ("reason", "by", "said"),
    [
        ("", "Ann", "not accepted without"),
        (" \n", "Ann", "not accepted without"),
        ("why", " ", "not accepted without"),
        *((odd, "Ann", "'reason' holds what cannot be stored")
          for odd in ("a\x1b[2J", "a\u202eb", "a\ud800", "x" * 4001)),
    ],
)  # fmt: skip
def test_nothing_is_accepted_without_a_plain_reason_and_name(
    tmp_path: Path, reason: str, by: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        accept(RUN, tmp_path, reason=reason, by=by)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", ["wrong", "crashed", "timed-out", "disturbed", "error"])
def test_what_ended_ok_is_accepted_and_the_rest_is_named(tmp_path: Path, status: str) -> None:
    run = finished({"skipped": 1.0, "copy": 1.0, "add": 2.0, "bare": 1.0})
    ids = [one.id for one in run.variants]
    skipped = model.Result(variant=ids[0], status=Status.SKIPPED, reason="needs sm_100")
    bad = replace(result(ADD, 2.0, status=Status(status)), reason="differs\nby much")
    again = replace(bad, stage=model.Stage.CONFIRM, status=Status.OK)
    bare = model.Result(variant=ids[3], status=Status.OK)
    run = run.having(results=(skipped, run.results[1], bad, again, bare))
    done = take(run, tmp_path)
    assert done.added == tuple(load(tmp_path).entries) == (COPY,)
    told = {
        ADD: f"{status}: differs",
        ids[3]: "nothing was measured",
        ids[0]: "skipped: needs sm_100",
    }
    assert [*done.refused.items()] == [*told.items()], "what was skipped is last"
    assert str(done) == "1 added, 0 changed, 0 unchanged, 3 not accepted"
    many = finished({f"case{n}": 1.0 for n in range(8)})
    results = [replace(each, status=Status(status)) for each in many.results]
    with pytest.raises(NothingAcceptedError, match=rf"case0.*\({status}\), .*, 3 more"):
        take(many.having(results=results), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_another_fingerprint_is_told_and_not_overwritten(tmp_path: Path) -> None:
    take(RUN, tmp_path)
    other = replace(SKU, facts={**SKU.facts, "sms": "114"})
    assert "sms was 132 and is 114" in Baselines.load([tmp_path], other).fingerprint_problem
    assert load(tmp_path).fingerprint_problem == ""
    with pytest.raises(UsageError, match="sms was 132 and is 114"):
        take(replace(RUN, sku=other), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"pack": "memory",', '"pack": "memory",\n"pack": "memory",', "duplicate key 'pack'"),
        ("perfsuite.baseline/1", "perfsuite.baseline/2", "reads 'perfsuite.baseline/1'"),
        ('"sku": "nvidia-h200"', '"sku": "nvidia-h100"', "SKU 'nvidia-h100'"),
        ('"pack": "memory"', '"pack": "compute"', "pack 'compute'"),
        (COPY, "copy", "not of pack 'memory'"),
        (COPY, "copy" * 9000, "not of pack 'memory'"),
        ("peak_bytes", "peak bytes" * 900, "peak bytes"),
        ('"case_version": 1', '"case_version": "1"', "`$.case_version`"),
        ('"by": "Ann"', '"by": 3', "`$.accepted.by`"),
        ('"sets": 1', '"sets": 1000', "Expected `int` <= 256 - at `$.sampling.sets`"),
        ('"center": 12.5', '"center": NaN', "'NaN' cannot be stored"),
        ('"better": "lower"', '"better": "less"', "- at `$.metrics[...].better`"),
        ('"center": 12.5', '"center": 0', "is not above 0 - at `$.metrics[...]`"),
        ('"within": 0.001', '"within": -1', "- at `$.metrics[...].within`"),
        ("[12.5, 12.75, 12.25]", "[]", "a unit has no process"),
        ("[12.5, 12.75, 12.25]", "[1, -2, 3]", "not above 0"),
        ("[12.5, 12.75, 12.25]", "[1, 2]", "of different processes"),
        ("[12.5, 12.75, 12.25]", "[1, null, 3]", "`$.metrics[...].values[...][1]`"),
        (', "values": {"3f2a91c04d7e": [12.5, 12.75, 12.25]}', "", "a clock without values"),
        ('"metrics": {', '"metrics": {}, "counts": {', "unknown field `counts`"),
        (RUN_ID, "../x", "run id '../x' cannot be a file name"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    take(RUN, tmp_path)
    text = baseline_text(SKU.slug, "memory", {COPY: entry_of(COPY)}).decode()
    assert old in text
    memory(tmp_path).write_text(text.replace(old, new, 1))
    error = refusal(tmp_path)
    assert said in error.what
    assert len(str(error)) < 1000
    assert str(memory(tmp_path)) in error.where


def test_entries_without_their_product_are_refused(tmp_path: Path) -> None:
    take(RUN, tmp_path)
    (tmp_path / "nvidia-h200/sku.json").unlink()
    assert "No such file" in refusal(tmp_path).what


@pytest.mark.parametrize("slug", ["..", "../up", "", "a/b", "/etc", ".git", "a\n"])
def test_slugs_that_lead_elsewhere_are_refused(tmp_path: Path, slug: str) -> None:
    with pytest.raises(StoreError, match="SKU slug"):
        Baselines.load([tmp_path], replace(SKU, slug=slug))


def test_packs_and_runs_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    for pack in ("..", "a/b", "../../x"):
        odd = replace(RUN.results[0], variant=f"{pack}.copy[n=1024]")
        run = replace(RUN, variants=ran(replace(RUN.variants[0].variant, id=odd.variant)))
        with pytest.raises(StoreError, match="pack name"):
            take(run.having(results=(odd,)), tmp_path)
    cut = replace(RUN, finished="")
    assert take(cut, tmp_path / "some", "memory.copy").added == (COPY,)
    with pytest.raises(UsageError, match="interrupted"):
        take(cut, tmp_path)
    with pytest.raises(StoreError, match=r"run id '\.\./x'"):
        take(replace(RUN, id="../x"), tmp_path)
    assert not memory(tmp_path).exists()


def _dangling(path: Path) -> None:
    path.rename(path.with_name("kept"))
    path.symlink_to(path.with_name("nowhere"))


def _other_kind(path: Path) -> None:
    """Put a file in a folder's place, and a folder in a file's."""
    if path.is_dir():
        shutil.rmtree(path)
        path.touch()
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        *((_dangling, n) for n in ("", "nvidia-h200", "nvidia-h200/memory.json")),
        (_dangling, f"nvidia-h200/runs/{RUN_ID}.json"),
        *((_other_kind, n) for n in ("", "nvidia-h200", "nvidia-h200/memory.json")),
    ],
)
def test_what_is_there_and_cannot_be_read_is_not_nothing(
    tmp_path: Path, spoil: Callable[[Path], None], name: str
) -> None:
    root = tmp_path / "baselines"
    take(RUN, root)
    spoil(root / name)
    assert str(root) in refusal(root).where


def test_baselines_are_not_written_through_a_link_out_of_the_root(tmp_path: Path) -> None:
    root, out = tmp_path / "baselines", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    (root / "nvidia-h200").symlink_to(out)
    with pytest.raises(StoreError, match="leads out of the folder"):
        take(RUN, root)
    assert not list(out.iterdir())
    (root / "nvidia-h200").unlink()
    take(RUN, root)
    shutil.rmtree(root / "nvidia-h200" / "runs")
    (out / "precious.json").write_text("{}")
    (root / "nvidia-h200" / "runs").symlink_to(out)
    with pytest.raises(StoreError, match="leads out of the folder"):
        take(again(22.5), root)
    assert [path.name for path in out.iterdir()] == ["precious.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    take(RUN, tmp_path)
    before = memory(tmp_path).read_bytes()
    more = finished({f"case{n}": 1.0 for n in range(5)}, run_id=LATER)
    with file_size_limit(len(before)), pytest.raises(StoreError, match="File too large"):
        take(more, tmp_path)
    assert memory(tmp_path).read_bytes() == before
    assert not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(StoreError, match="Not a directory"):
        take(RUN, memory(tmp_path))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"add": 1.1}, {"copy": 2.1}),
        ({"scale": 3.3}, {"copy": 2.1}),
        ({"scale": 3.3}, {"triad": 4.0}),
        ({"aaa": 0.5, "copy": 2.2}, {"zzz": 9.0, "add": 1.1}),
    ],
)
def test_neighbours_changed_by_two_people_merge(
    tmp_path: Path, ours: dict[str, float], theirs: dict[str, float]
) -> None:
    base = tmp_path / "base"
    take(finished({"add": 1.0, "copy": 2.0, "scale": 3.0}), base)
    paths, runs = [str(memory(base))], dict[str, str]()
    for person, times_us in (("ours", ours), ("theirs", theirs)):
        shutil.copytree(base, tmp_path / person)
        take(finished(times_us, run_id=person), tmp_path / person)
        paths.append(str(memory(tmp_path / person)))
        runs |= {model.variant_id("memory", case, {"n": 1024}): person for case in times_us}
    command = ["git", "merge-file", "-p", "--diff3", paths[1], paths[0], paths[2]]
    merged = subprocess.run(command, capture_output=True, check=False)
    assert merged.returncode == 0, merged.stdout.decode()
    memory(base).write_bytes(merged.stdout)
    assert runs.items() <= {name: entry.run for name, entry in load(base).entries.items()}.items()


def test_two_who_accept_at_once_lose_nothing(tmp_path: Path) -> None:
    def one_by_one(person: str) -> None:
        run = finished({f"{person}{n}": 1.0 for n in range(10)}, run_id=person)
        for each in run.results:
            take(run, tmp_path, each.variant)

    with ThreadPoolExecutor() as pool:
        list(pool.map(one_by_one, ("ann", "bob")))
    assert len(load(tmp_path).entries) == 20
