"""Baselines: what is accepted, what is refused, and files that are never half nor lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace
from store_data import FACTS, OTHER_UNIT, SKU, UNIT, file_size_limit, finished, ran, result

from perfsuite.boundary import StoreError, UsageError
from perfsuite.model import (
    Regime,
    Result,
    Revision,
    Run,
    Sampling,
    Status,
    Verdict,
    Word,
    variant_id,
)
from perfsuite.run.accept import Accepted, accept
from perfsuite.store.baselines import Baselines
from perfsuite.store.runs import RunFile

GOLD = Path(__file__).parent / "gold" / "baselines"
COPY = "memory.copy[n=1024]"
ADD = "memory.add[n=1024]"
MERGE = ("git", "merge-file", "-p", "--diff3")


def take(run: Run, root: Path, *select: str) -> Accepted:
    return accept(run, root, reason="first numbers", by="Ann", select=select)


def memory(root: Path) -> Path:
    return root / "nvidia-h200" / "memory.json"


def load(root: Path) -> Baselines:
    return Baselines.load([root], SKU)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def refusal(root: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        load(root)
    assert caught.value.remedy
    return caught.value


def test_what_is_accepted_is_loaded(tmp_path: Path) -> None:
    done = take(finished({"copy": 12.5, "add": 3.0}), tmp_path)
    baselines = load(tmp_path)
    entry = baselines.entry(COPY)
    assert set(done.added) == set(baselines.entries) == {COPY, ADD}
    assert (done.changed, done.unchanged, done.refused) == ({}, (), {})
    assert {path.name for path in done.written} == {
        "sku.json",
        "memory.json",
        "20261121-103000-3f2a.json",
    }
    assert entry is not None
    assert entry.metrics["time_us"].center == pytest.approx(12.5, rel=1e-3)
    assert entry.metrics["peak_bytes"].center == 134217729
    assert entry.state == FACTS.state


def test_who_when_and_why_are_kept(tmp_path: Path) -> None:
    accept(finished({"copy": 12.5}), tmp_path, reason=" new\n driver ", by="Ann")
    accepted = load(tmp_path).stored[COPY].accepted
    assert (accepted.by, accepted.reason) == ("Ann", "new driver")
    assert datetime.fromisoformat(accepted.when).tzinfo == UTC
    (facts,) = tmp_path.glob("*/runs/*.json")
    assert json.loads(facts.read_text())["environment"] == FACTS.environment


def test_how_it_was_sampled_is_kept(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    entry = load(tmp_path).entry(COPY)
    assert entry is not None
    assert entry.sampling == Sampling(launches=8, sets=1)


def test_an_entry_of_unknown_sampling_gets_it_and_stays(tmp_path: Path) -> None:
    run = finished({"copy": 12.5})
    take(run, tmp_path)
    text = memory(tmp_path).read_text().replace(', "sampling": {"launches": 8, "sets": 1}', "")
    memory(tmp_path).write_text(text)
    assert load(tmp_path).entries[COPY].sampling is None
    done = take(finished({"copy": 12.5}, run_id="later"), tmp_path)
    assert done.changed == {COPY: "sampling recorded"}
    assert load(tmp_path).entries[COPY].sampling == Sampling(8, 1)


def test_values_that_were_sampled_otherwise_are_replaced(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    run = finished({"copy": 12.5}, unit=OTHER_UNIT, run_id="later")
    processes = tuple(replace(each, launches=16) for each in run.results[0].evidence)
    other = run.having(results=(replace(run.results[0], evidence=processes),))
    done = take(other, tmp_path)
    words = "sampling was 8 launches over 1 input sets and is 16 launches over 1 input sets"
    assert done.changed == {COPY: words}
    assert load(tmp_path).entries[COPY].metrics["time_us"].values.keys() == {OTHER_UNIT}


def test_an_unknown_variant_has_nothing(tmp_path: Path) -> None:
    baselines = load(tmp_path)
    assert (baselines.entry(COPY), baselines.stored) == (None, {})


def test_the_file_has_a_line_for_each_metric_in_order(tmp_path: Path) -> None:
    take(finished({"copy": 12.5, "add": 3.0}), tmp_path)
    text = memory(tmp_path).read_text()
    starts = [line.split(":")[0].strip() for line in text.splitlines() if '"center"' in line]
    assert starts == ['"cycles"', '"peak_bytes"', '"time_us"'] * 2
    assert text.index(ADD) < text.index(COPY)
    assert list(json.loads(text)) == ["schema", "sku", "pack", "variants"]


def test_the_first_root_that_has_a_variant_wins(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path / "own")
    take(finished({"copy": 99.0, "add": 3.0}, run_id="shipped"), tmp_path / "pack")
    baselines = Baselines.load([tmp_path / "own", tmp_path / "none", tmp_path / "pack"], SKU)
    runs = {name: entry.run for name, entry in baselines.entries.items()}
    assert runs == {COPY: "20261121-103000-3f2a", ADD: "shipped"}


def test_the_same_numbers_again_change_nothing(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    before = memory(tmp_path).read_bytes()
    done = take(finished({"copy": 12.501}, run_id="again"), tmp_path)
    assert (done.written, done.unchanged) == ((), (COPY,))
    assert memory(tmp_path).read_bytes() == before


def test_what_moved_is_rewritten_and_the_rest_kept(tmp_path: Path) -> None:
    take(finished({"copy": 12.5, "add": 3.0, "other.gemm": 9.0}), tmp_path)
    done = take(finished({"copy": 12.6}, run_id="later"), tmp_path)
    assert done.changed == {COPY: "cycles +0.80%; time_us +0.80%"}
    runs = {name: entry.run for name, entry in load(tmp_path).entries.items()}
    first = "20261121-103000-3f2a"
    assert runs == {COPY: "later", ADD: first, "other.gemm[n=1024]": first}


def test_a_run_that_nothing_refers_to_is_dropped(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    take(finished({"copy": 13.5}, run_id="later"), tmp_path)
    assert [path.stem for path in (tmp_path / "nvidia-h200/runs").iterdir()] == ["later"]


def test_an_exact_metric_changes_by_any_amount(tmp_path: Path) -> None:
    run = finished({"copy": 12.5})
    take(run, tmp_path)
    process = replace(run.results[0].evidence[0], exact={"peak_bytes": 134217730.0})
    more = replace(run.results[0], evidence=(process, *run.results[0].evidence[1:]))
    done = take(run.having(results=(more,)), tmp_path)
    assert done.changed == {COPY: "peak_bytes was 134217729 and is 134217730"}


def test_another_unit_adds_its_values(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    done = take(finished({"copy": 12.6}, unit=OTHER_UNIT, run_id="later"), tmp_path)
    entry = load(tmp_path).entry(COPY)
    assert done.changed == {COPY: f"unit {OTHER_UNIT} added"}
    assert entry is not None
    time = entry.metrics["time_us"]
    assert {unit: len(row) for unit, row in time.values.items()} == {UNIT: 3, OTHER_UNIT: 3}
    assert time.center == pytest.approx(12.55, rel=1e-3)
    assert time.between < 1e-3, "between processes of one unit, not between units"


def test_a_unit_s_own_values_are_replaced(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    take(finished({"copy": 12.6}, unit=OTHER_UNIT, run_id="b"), tmp_path)
    take(finished({"copy": 12.55}, run_id="c"), tmp_path)
    entry = load(tmp_path).entry(COPY)
    assert entry is not None
    values = entry.metrics["time_us"].values
    assert values[UNIT] == pytest.approx([12.55] * 3, rel=1e-3)
    assert values[OTHER_UNIT] == pytest.approx([12.6] * 3, rel=1e-3)


def test_units_that_disagree_replace_and_say_so(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    done = take(finished({"copy": 14.0}, unit=OTHER_UNIT, run_id="later"), tmp_path)
    entry = load(tmp_path).entry(COPY)
    assert done.changed == {COPY: f"other code; values of other units dropped: {UNIT}"}
    assert entry is not None
    assert set(entry.metrics["time_us"].values) == {OTHER_UNIT}


@pytest.mark.parametrize(
    ("artefact", "regime", "times_us", "is_kept"),
    [
        ("aa", Regime.PACED, (12.5, 13.5), True),
        ("", Regime.PACED, (12.5, 13.5), False),
        ("", Regime.END_TO_END, (12.5, 17.0), True),
        # The same kernels launched twice, in a run that was not judged.
        ("aa", Regime.PACED, (12.5, 25.0), False),
    ],
)
def test_units_that_disagree_are_kept_where_time_says_nothing_of_code(
    tmp_path: Path, *, artefact: str, regime: Regime, times_us: tuple[float, ...], is_kept: bool
) -> None:
    for unit, time_us in zip((UNIT, OTHER_UNIT), times_us, strict=True):
        run = finished({"copy": time_us}, unit=unit, run_id=unit)
        processes = tuple(replace(p, artefact=artefact) for p in run.results[0].evidence)
        variant = run.variants[0].variant
        variant = replace(variant, case=replace(variant.case, regime=regime))
        results = (replace(run.results[0], evidence=processes),)
        done = take(replace(run, variants=ran(variant)).having(results=results), tmp_path)
    entry = load(tmp_path).entry(COPY)
    assert entry is not None
    assert (set(entry.metrics["time_us"].values) == {UNIT, OTHER_UNIT}) == is_kept
    assert ("dropped" in done.changed[COPY]) != is_kept


def test_a_change_that_a_verdict_found_drops_other_units(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}, unit=OTHER_UNIT), tmp_path)
    faster = Verdict(variant=COPY, word=Word.FASTER, reason="-1 %")
    run = finished({"copy": 12.4}, run_id="later").having(verdicts=(faster,))
    assert "values of other units dropped" in take(run, tmp_path).changed[COPY]


def test_a_slower_or_uncommitted_run_is_accepted_and_says_so(tmp_path: Path) -> None:
    take(finished({"copy": 12.5, "add": 3.0}), tmp_path)
    slower = Verdict(variant=COPY, word=Word.SLOWER, reason="+4 %")
    run = finished({"copy": 13.0, "add": 3.0}, run_id="later").having(verdicts=(slower,))
    assert str(take(replace(run, commit="9c1e-dirty"), tmp_path)) == (
        "0 added, 1 changed, 1 unchanged, 0 without a measurement; "
        "1 of them slower than before, of code that is in no commit (9c1e-dirty)"
    )
    clean = replace(finished({"copy": 12.0}, run_id="clean"), commit="9c1e")
    assert take(clean, tmp_path).caution == ""


def test_verdicts_against_a_revision_say_nothing_of_the_baseline(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}, unit=OTHER_UNIT), tmp_path)
    same = Verdict(variant=COPY, word=Word.SAME, reason="")
    run = finished({"copy": 12.4}, run_id="later").having(verdicts=(same,))
    run = replace(run, against=Revision("a" * 40, "main"))
    assert "values of other units dropped" in take(run, tmp_path).changed[COPY]


def test_another_artefact_is_other_code(tmp_path: Path) -> None:
    for artefact, what in (("aa", ""), ("bb", "other code")):
        run = finished({"copy": 12.5})
        processes = tuple(replace(p, artefact=artefact) for p in run.results[0].evidence)
        again = run.having(results=(replace(run.results[0], evidence=processes),))
        assert take(again, tmp_path).changed.get(COPY, "") == what


def test_a_new_case_version_replaces(tmp_path: Path) -> None:
    run = finished({"copy": 12.5})
    take(run, tmp_path)
    newer = run.having(results=(replace(run.results[0], case_version=2),))
    assert take(newer, tmp_path).changed == {COPY: "case version was 1 and is 2"}


def test_other_metrics_replace(tmp_path: Path) -> None:
    run = finished({"copy": 12.5})
    take(run, tmp_path)
    processes = tuple(replace(process, exact={}) for process in run.results[0].evidence)
    fewer = run.having(results=(replace(run.results[0], evidence=processes),))
    assert take(fewer, tmp_path).changed[COPY].startswith("metrics were cycles, peak_bytes")


@pytest.mark.parametrize(("reason", "by"), [("", "Ann"), (" \n", "Ann"), ("why", " ")])
def test_nothing_is_accepted_without_reason_and_name(tmp_path: Path, reason: str, by: str) -> None:
    with pytest.raises(UsageError, match="not accepted without"):
        accept(finished({"copy": 1.0}), tmp_path, reason=reason, by=by)


def test_an_interrupted_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="interrupted"):
        take(replace(finished({"copy": 1.0}), finished=""), tmp_path)


@pytest.mark.parametrize("status", ["wrong", "crashed", "timed-out", "disturbed", "error"])
def test_a_failed_variant_refuses_the_whole(tmp_path: Path, status: str) -> None:
    run = finished({"copy": 1.0, "add": 2.0})
    bad = run.having(results=(run.results[0], result(ADD, 2.0, status=Status(status))))
    with pytest.raises(UsageError, match=rf"did not end ok: memory\.add.*\({status}\)"):
        take(bad, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert take(bad, tmp_path, COPY).added == (COPY,)


def test_many_failed_variants_are_counted(tmp_path: Path) -> None:
    run = finished({f"case{n}": 1.0 for n in range(8)})
    bad = tuple(replace(each, status=Status.CRASHED) for each in run.results)
    with pytest.raises(UsageError, match="and 3 more"):
        take(run.having(results=bad), tmp_path)


@pytest.mark.parametrize("word", ["memory", "memory.copy", COPY])
def test_selection_is_by_pack_case_or_variant(tmp_path: Path, word: str) -> None:
    run = finished({"copy": 1.0, "other.copy": 2.0, "copying.memory": 3.0})
    assert take(run, tmp_path, word).added == (COPY,)


def test_an_unknown_selection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no result of 'memory\.cop'"):
        take(finished({"copy": 1.0}), tmp_path, "memory.copy", "memory.cop")


def test_what_has_no_measurement_says_so(tmp_path: Path) -> None:
    skipped = Result(variant=ADD, status=Status.SKIPPED, reason="needs sm_100")
    run = finished({"copy": 1.0, "add": 1.0, "bare": 1.0})
    bare = Result(variant=run.variants[2].id, status=Status.OK)
    done = take(run.having(results=(run.results[0], skipped, bare)), tmp_path)
    assert done.refused == {ADD: "needs sm_100", bare.variant: "nothing was measured"}
    assert str(done) == "1 added, 0 changed, 0 unchanged, 2 without a measurement"


def test_another_fingerprint_is_told_and_not_overwritten(tmp_path: Path) -> None:
    take(finished({"copy": 1.0}), tmp_path)
    other = replace(SKU, facts={**SKU.facts, "sms": "114"})
    assert "sms was 132 and is 114" in Baselines.load([tmp_path], other).fingerprint_problem
    assert load(tmp_path).fingerprint_problem == ""
    with pytest.raises(UsageError, match="sms was 132 and is 114"):
        take(replace(finished({"copy": 2.0}), sku=other), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"memory"', '"memory"}', "not valid JSON"),
        ('"pack": "memory",', '"pack": "memory",\n"pack": "memory",', "duplicate key 'pack'"),
        ("perfsuite.baseline/1", "perfsuite.baseline/2", "reads 'perfsuite.baseline/1'"),
        ('"sku": "nvidia-h200"', '"sku": "nvidia-h100"', "key 'sku' is 'nvidia-h100'"),
        ('"pack": "memory"', '"pack": "compute"', "key 'pack' is 'compute'"),
        ('"variants"', '"entries"', "unknown field `entries`"),
        (COPY, "copy", "not of pack 'memory'"),
        ('"case_version": 1', '"case_version": "1"', "`$.entry.case_version`"),
        ('"case_version": 1', '"case_version": 1, "speed": 3', "unknown field `speed`"),
        ('"accepted"', '"acepted"', "unknown field `acepted`"),
        ('"by": "Ann"', '"by": 3', "`$.accepted.by`"),
        (
            '"time_us": {"center": 12.5',
            '"time_us": {"center": NaN, "x": 2',
            "'NaN' cannot be stored",
        ),
        ('"time_us": {"center": 12.5', '"time_us": {"center": "12.5', "not valid JSON"),
        ('"unit": "us"', '"unit": 3', "`$.entry.metrics[...].unit`"),
        ('"better": "lower"', '"better": "less"', "'metrics.cycles.better' is 'less'"),
        ('"unit": "us", "better"', '"unit": "us", "bett"', "unknown field `bett`"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    before = '"time_us": {"center": 12.5'
    text = memory(tmp_path).read_text()
    start = text.index('"time_us": {"center": ')
    end = text.index(",", start)
    memory(tmp_path).write_text(text[:start] + before + text[end:])
    edit(memory(tmp_path), old, new)
    error = refusal(tmp_path)
    assert said in error.what
    assert str(memory(tmp_path)) in error.where


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("center", 0, "'metrics.time_us' has a center or a value of 0.0"),
        ("within", -1, "'metrics.time_us' has a within or between of -1.0"),
        ("values", {}, "'metrics.time_us.values' has no process"),
        ("values", {UNIT: []}, "'metrics.time_us.values' has no process"),
        ("values", {UNIT: [1, -2, 3]}, "a center or a value of -2.0"),
        ("values", {UNIT: [1, 2]}, "other processes than its neighbours"),
        ("values", {UNIT: [1, None, 3]}, "`$.entry.metrics[...].values[...][1]`"),
    ],
)
def test_numbers_that_nothing_measures_are_refused(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    plain = json.loads(memory(tmp_path).read_text())
    plain["variants"][COPY]["metrics"]["time_us"][key] = value
    memory(tmp_path).write_text(json.dumps(plain))
    error = refusal(tmp_path)
    assert said in error.what
    assert error.where == f"{memory(tmp_path)}, variant {COPY!r}"


def test_an_entry_without_metrics_is_refused(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    plain = json.loads(memory(tmp_path).read_text())
    plain["variants"][COPY]["metrics"] = {}
    memory(tmp_path).write_text(json.dumps(plain))
    assert "'metrics' is empty" in refusal(tmp_path).what


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"null"])
def test_a_corrupt_file_is_never_empty(tmp_path: Path, data: bytes) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    memory(tmp_path).write_bytes(data)
    refusal(tmp_path)
    with pytest.raises(StoreError):
        take(finished({"copy": 12.5}), tmp_path)
    assert memory(tmp_path).read_bytes() == data


def test_sku_json_is_checked_too(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    edit(tmp_path / "nvidia-h200/sku.json", '"slug": "nvidia-h200"', '"slug": "nvidia-h100"')
    assert "key 'slug' is 'nvidia-h100'" in refusal(tmp_path).what
    (tmp_path / "nvidia-h200/sku.json").unlink()
    assert "No such file" in refusal(tmp_path).what


@pytest.mark.parametrize("slug", ["..", "../up", "", "a/b", "/etc", ".git", "a\n"])
def test_slugs_that_lead_elsewhere_are_refused(tmp_path: Path, slug: str) -> None:
    with pytest.raises(StoreError, match="SKU slug"):
        Baselines.load([tmp_path], replace(SKU, slug=slug))


@pytest.mark.parametrize("pack", ["..", "a/b", "sku", "../../x"])
def test_packs_that_lead_elsewhere_are_refused(tmp_path: Path, pack: str) -> None:
    run = finished({"copy": 12.5})
    odd = replace(run.results[0], variant=f"{pack}.copy[n=1024]")
    run = replace(run, variants=ran(replace(run.variants[0].variant, id=odd.variant)))
    with pytest.raises(StoreError, match="pack name"):
        take(run.having(results=(odd,)), tmp_path)


def test_run_ids_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"run id '\.\./x'"):
        take(finished({"copy": 12.5}, run_id="../x"), tmp_path)
    assert not memory(tmp_path).exists()


def _as_a_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("")


def _dangling(root: Path) -> None:
    memory(root).rename(root / "kept")
    memory(root).symlink_to(root / "nowhere")


def _looping(root: Path) -> None:
    memory(root).unlink()
    memory(root).symlink_to(memory(root))


def _as_a_folder(root: Path) -> None:
    memory(root).unlink()
    memory(root).mkdir()


def _as_a_pipe(root: Path) -> None:
    memory(root).unlink()
    os.mkfifo(memory(root))


def _root_dangling(root: Path) -> None:
    root.rename(root.with_name("kept"))
    root.symlink_to(root / "nowhere")


def _sku_dangling(root: Path) -> None:
    (root / "nvidia-h200").rename(root / "kept")
    (root / "nvidia-h200").symlink_to(root / "nowhere")


def _sku_as_a_file(root: Path) -> None:
    shutil.rmtree(root / "nvidia-h200")
    (root / "nvidia-h200").write_text("")


def _run_dangling(root: Path) -> None:
    path = next((root / "nvidia-h200" / "runs").iterdir())
    path.unlink()
    path.symlink_to(root / "nowhere")


@pytest.mark.parametrize(
    "spoil",
    [
        _as_a_file,
        _dangling,
        _looping,
        _as_a_folder,
        _as_a_pipe,
        _root_dangling,
        _sku_dangling,
        _sku_as_a_file,
        _run_dangling,
    ],
)
def test_what_is_there_and_cannot_be_read_is_not_nothing(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    root = tmp_path / "baselines"
    take(finished({"copy": 12.5}), root)
    spoil(root)
    assert str(root) in refusal(root).where


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("name", ["", "nvidia-h200", "nvidia-h200/memory.json"])
def test_baselines_without_rights_are_not_nothing(name: str) -> None:
    # The folders of pytest's tmp_path are nobody else's.
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        root = Path(place) / "baselines"
        take(finished({"copy": 12.5}), root)
        (root / name).chmod(0)
        program = (
            "import sys; sys.path[:0] = sys.argv[2:]\n"
            "from pathlib import Path; from test_baselines import SKU, Baselines\n"
            "from perfsuite.boundary import StoreError\n"
            "import os; os.setuid(12345)\n"
            "try: Baselines.load([Path(sys.argv[1])], SKU)\n"
            "except StoreError as error: print(error)\n"
        )
        command = [sys.executable, "-c", program, str(root), str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Permission denied" in done.stdout, done.stderr
        assert "do: restore it from git" in done.stdout
        assert str(root / name) in done.stdout


def test_baselines_are_not_written_through_a_link_out_of_the_root(tmp_path: Path) -> None:
    root, out = tmp_path / "baselines", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    (root / "nvidia-h200").symlink_to(out)
    with pytest.raises(StoreError, match="leads out of the folder"):
        take(finished({"copy": 12.5}), root)
    assert not list(out.iterdir())
    (root / "nvidia-h200").unlink()
    take(finished({"copy": 12.5}), root)
    shutil.rmtree(root / "nvidia-h200" / "runs")
    (out / "precious.json").write_text("{}")
    (root / "nvidia-h200" / "runs").symlink_to(out)
    with pytest.raises(StoreError, match="leads out of the folder"):
        take(finished({"copy": 22.5}, run_id="later"), root)
    assert [path.name for path in out.iterdir()] == ["precious.json"]


@pytest.mark.parametrize("reason", ["a\x1b[2J", "a\u202eb", "a\ud800", "x" * 4001])
def test_a_reason_that_cannot_be_shown_is_refused(tmp_path: Path, reason: str) -> None:
    with pytest.raises(UsageError, match="'reason' holds what cannot be stored"):
        accept(finished({"copy": 12.5}), tmp_path, reason=reason, by="Ann")
    assert not list(tmp_path.iterdir())


def test_no_password_of_an_older_run_enters_the_baselines(tmp_path: Path) -> None:
    command = "pytest --perf -o perf_history=postgresql://ci:s3cret@host/db"
    take(replace(finished({"copy": 12.5}), command=command), tmp_path)
    assert not [path for path in tmp_path.rglob("*.json") if "s3cret" in path.read_text()]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    take(finished({"copy": 12.5}), tmp_path)
    before = memory(tmp_path).read_bytes()
    more = finished({f"case{n}": 1.0 for n in range(5)}, run_id="later")
    with file_size_limit(len(before)), pytest.raises(StoreError, match="File too large"):
        take(more, tmp_path)
    assert memory(tmp_path).read_bytes() == before
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        take(finished({"copy": 12.5}), tmp_path / "file")


def changed_beside(base: Path, name: str, times_us: dict[str, float]) -> Path:
    """Return the pack's file after one person accepted these times on a copy of the base."""
    root = base.with_name(name)
    shutil.copytree(base, root)
    take(finished(times_us, run_id=f"run-{name}"), root)
    return memory(root)


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
    paths = [
        changed_beside(base, "ours", ours),
        memory(base),
        changed_beside(base, "theirs", theirs),
    ]
    merged = subprocess.run([*MERGE, *paths], capture_output=True, check=False)
    assert merged.returncode == 0, merged.stdout.decode()
    memory(base).write_bytes(merged.stdout)
    runs = {variant_id("memory", case, {"n": 1024}): "run-ours" for case in ours}
    runs |= {variant_id("memory", case, {"n": 1024}): "run-theirs" for case in theirs}
    assert runs.items() <= {name: entry.run for name, entry in load(base).entries.items()}.items()


ONE_BY_ONE = """
import sys
from pathlib import Path
from perfsuite.run.accept import accept
from perfsuite.store.runs import load_run
run = load_run(Path(sys.argv[1]))
for result in run.results:
    accept(run, Path(sys.argv[2]), reason="x", by="y", select=[result.variant])
"""


def test_two_who_accept_at_once_lose_nothing(tmp_path: Path) -> None:
    paths = []
    for person in ("ann", "bob"):
        run = finished({f"{person}{n}": 1.0 for n in range(10)}, run_id=person)
        with RunFile.create(tmp_path, run) as file:
            for each in run.results:
                file.append(each)
            file.finish(run)
        paths.append(file.path)
    command = [sys.executable, "-c", ONE_BY_ONE]
    both = [subprocess.Popen([*command, str(path), str(tmp_path / "b")]) for path in paths]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(load(tmp_path / "b").entries) == 20


def test_stored_baselines_of_version_1_are_still_read() -> None:
    baselines = load(GOLD)
    assert baselines.fingerprint_problem == ""
    assert baselines.stored[COPY].accepted.when.startswith("2026")


def test_what_is_named_of_an_interrupted_run_is_accepted(tmp_path: Path) -> None:
    run = replace(finished({"copy": 1.0}), finished="")
    accepted = accept(run, tmp_path, reason="first", by="Ann", select=["memory.copy"])
    assert accepted.added == (COPY,)


def test_baselines_of_another_board_are_named_and_not_used(tmp_path: Path) -> None:
    old, new = (
        replace(SKU, slug=f"nvidia-h200-{end}", facts={"board": f"692-2G520-{end}"})
        for end in ("0282-000", "0282-001")
    )
    accept(replace(finished({"copy": 12.5}), sku=old), tmp_path, reason="first", by="me")
    found = Baselines.load([tmp_path], new)
    (note,) = found.notes
    assert note.startswith("not compared with nvidia-h200-0282-000: another board")
    assert not found.stored
    assert not Baselines.load([tmp_path], old).notes
