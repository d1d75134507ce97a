"""The proof: on recorded samples of four H200s, on made-up ones of known truth, from end to end."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from proof_data import HEADER, made_up, recorded, variant
from store_data import finished, result

from perfsuite.boundary import StoreError
from perfsuite.cli import main
from perfsuite.model import Result, Run, Stage, Status, Word
from perfsuite.packs.find import packs_at
from perfsuite.prove import planted
from perfsuite.prove.collect import Order, ask
from perfsuite.prove.page import (
    OURS,
    Comparison,
    Proof,
    Share,
    Tally,
    agreements,
    comparisons,
    cost,
    nights,
    tallies,
    targets,
    tools_of,
    write_page,
)
from perfsuite.prove.raw import (
    CUPTI,
    Line,
    Process,
    Raw,
    Reading,
    Stretch,
    append,
    read_raw,
    wave_of,
)
from perfsuite.store.codec import encode
from perfsuite.store.runs import RunFile
from perfsuite.testing import check_pack
from perfsuite.workers.process import Setup, Slot, child_environment


def by_kernel(found: list[Comparison]) -> dict[tuple[str, float], Tally]:
    return tallies(found, lambda each: (each.kernel, each.change))


# Orders in which the processes are dealt out; each order is disjoint in itself.
SEEDS = 6
# By how many other units a baseline knows: shares of changes that are found at least.
FOUND = {
    0: {"attention": 1.0, "copy_1gib": 1.0, "gemm_4096": 0.95, "gemm_8192": 0.99, "fma_80us": 0.65},
    # What one other unit leaves open is asked of the unchanged code on the unit itself.
    1: {"attention": 1.0, "copy_1gib": 1.0, "gemm_4096": 0.95, "gemm_8192": 0.35, "fma_80us": 0.75},
    # Three tell by themselves: how far units of this very variant differ.
    3: {"attention": 1.0, "copy_1gib": 1.0, "gemm_4096": 0.95, "gemm_8192": 0.35, "fma_80us": 0.2},
}


@pytest.mark.parametrize("known", FOUND)
def test_recorded_changes_are_found_and_what_did_not_change_is_same(known: int) -> None:
    found = [each for seed in range(SEEDS) for each in comparisons(recorded(seed), known=known)]
    same = Tally([each for each in found if not each.change])
    assert same.words.total() >= SEEDS * (10 if known > 1 else 20)
    assert same.wrong.part == 0
    assert same.unclear.value <= 0.05
    for (kernel, change), tally in by_kernel(found).items():
        if change:
            assert tally.found.total >= 2 * SEEDS, kernel
            assert tally.found.value >= FOUND[known][kernel], kernel
            assert tally.words[Word.FASTER] == 0, kernel


def test_recorded_tools_find_what_they_found_when_recorded() -> None:
    tools = {(each.name, each.is_cross): each for each in tools_of(recorded(), draws=5)}
    ours, theirs = tools[OURS, True], tools["do_bench", True]
    # Shares found on another unit at 0.5 % of false alarms, ours at least and do_bench's at most.
    for kernel, least, most in (
        ("attention", 0.99, 0.3),
        ("copy_1gib", 0.99, 1.0),
        ("fma_80us", 0.97, 1.0),
        ("gemm_4096", 0.95, 0.1),
        ("gemm_8192", 0.7, 0.1),
    ):
        alone = [each._replace(said={kernel: each.said[kernel]}) for each in (ours, theirs)]
        assert alone[0].power_at(0.005) >= least, kernel
        assert alone[1].power_at(0.005) <= most, kernel


def test_no_wave_is_in_two_comparisons_and_baselines_are_of_the_units_named() -> None:
    # 24 waves of each variant: baseline and screen each time, until four must be left at least.
    raw = made_up()
    numbered = tuple(
        replace(wave, processes=3 * (Process(time_us=(t,), cycles=(1600 * t,)),))
        for index, wave in enumerate(raw.waves)
        for t in [300 + 0.001 * index]
    )
    found = list(comparisons(replace(raw, waves=numbered), known=0))
    changes = [each.verdict.changes[0] for each in found if not each.change]
    assert len(changes) == 2 * 11
    ends = {end for change in changes for end in (change.baseline, change.current)}
    assert len(ends) == 2 * len(changes)
    away = {(each.before, each.unit, each.known) for each in comparisons(raw, known=1)}
    assert away == {(("unit0",), "unit1", 1), (("unit1",), "unit0", 1)}
    alone = replace(raw, waves=tuple(wave for wave in raw.waves if wave.unit == "unit0"))
    assert list(comparisons(alone, known=1)) == []
    assert list(comparisons(alone, known=0))


def test_made_up_changes_are_found_and_noise_hides_them() -> None:
    quiet = by_kernel(list(comparisons(made_up(change=0.02), known=0)))
    loud = by_kernel(list(comparisons(made_up(change=0.02, between=0.03), known=0)))
    assert quiet["copy", 0.02].found.value == 1
    assert loud["copy", 0.02].found.value < 0.5
    assert loud["copy", 0.0].unclear.value > 0.5
    raw = made_up()
    far = Process(time_us=(375.0,), cycles=(6e5,))
    slowed = [
        replace(each, processes=(far, far, far)) for each in raw.waves if each.unit == "unit1"
    ]
    both = replace(raw, waves=(*(w for w in raw.waves if w.unit == "unit0"), *slowed))
    assert by_kernel(list(comparisons(both, known=1)))["copy", 0.0].wrong.value >= 0.9


def test_bounds_are_exact() -> None:
    assert Share(0, 2995).bounds()[1] == pytest.approx(0.001, rel=0.01)
    assert Share(90, 100).bounds() == pytest.approx((0.836, 0.945), abs=0.002)
    assert Share(0, 0).bounds() == (0.0, 1.0)


def written(path: Path, *lines: Line) -> Path:
    with path.open("wb", buffering=0) as file:
        for line in lines:
            append(file, line)
    return path


def test_raw_data_survives_an_interruption(tmp_path: Path) -> None:
    stretch = Stretch(unit="unit0", wall_s=2.0, timed_s=0.5, spin_s=1.0, busy=0.8)
    raw = replace(recorded(), stretches=(stretch,))
    path = written(tmp_path / "raw", raw.header, *raw.waves, *raw.readings, stretch)
    path.write_bytes(path.read_bytes() + b'["Wave",{"variant":"pla')
    packed = tmp_path / "raw.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_raw([path]) == read_raw([packed]) == raw
    later = written(tmp_path / "later", replace(raw.header, started="later"), raw.waves[0])
    again = read_raw([path, later])
    assert (again.waves, len(again.headers)) == ((*raw.waves, raw.waves[0]), 2)
    other = replace(raw.header, sku=replace(raw.header.sku, slug="b200"))
    for second, message in (
        (packed, "named twice"),
        (written(tmp_path / "other", other), "2 SKUs: b200, nvidia-h200"),
    ):
        with pytest.raises(StoreError, match=message):
            read_raw([path, second])


HEAD = encode(("Header", HEADER)) + b"\n"
PACKED = gzip.compress(b"raw" * 100, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("raw", b"", "no raw data"),
        ("raw", HEAD.replace(b"proof/1", b"proof/9"), "proof/9"),
        ("raw", HEAD + b'["Wave",{}]\n', r"variant`\n.*raw:2"),
        ("raw", HEAD + b'["Other",{}]\n', r"unknown kind 'Other'\n.*raw:2"),
        ("raw", HEAD + b'["Wave",\xff]\n', "damaged line"),
        (".", b"", "cannot be read"),
        ("raw.gz", PACKED[:20], "cannot be unpacked"),
        ("raw.gz", b"raw", "cannot be unpacked"),
        ("raw.gz", PACKED[:12] + b"raw" + PACKED[15:], "cannot be unpacked"),
    ],
)
def test_what_is_no_raw_data_is_refused(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    if data or name != ".":
        (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreError, match=message):
        read_raw([tmp_path / name])


def test_a_failed_variant_keeps_its_reason() -> None:
    result = Result(variant="a", status=Status.CRASHED, stage=Stage.SCREEN, reason="signal 11")
    wave = wave_of(result, "unit0")
    assert (wave.reason, wave.processes) == ("crashed: signal 11", ())
    assert cost(Raw(headers=(HEADER,), waves=(wave,)))["failed"] == {"crashed: signal 11": 1}


def test_page_says_what_is_missed_and_what_was_not_measured(tmp_path: Path) -> None:
    raw = recorded()
    base = next(iter(raw.variants))
    unit, time_us = raw.waves[0].unit, raw.waves[0].processes[0].time_us[0]
    told = Reading(variant=base, unit=unit, tool=CUPTI, time_us=time_us)
    refused = Reading(variant=base, unit=unit, tool="nvbench", reason="no module")
    raw = replace(raw, readings=(*raw.readings, told, refused))
    assert [kernel_us for _, _, kernel_us in agreements(raw)] == [time_us]
    proof = Proof(raw, draws=2)
    page, *drawings = write_page(proof, tmp_path / "proof.md")
    text = page.read_text(encoding="utf-8")
    outcomes = {outcome for *_, outcome in targets(proof)}
    assert outcomes == {"met", "**missed**", "not shown", "not measured"}
    assert all(" | ".join(row) in text for row in targets(proof))
    assert "nvbench gave no time: no module" in text
    assert all(each.name in text for each in drawings)
    root = ET.fromstring(drawings[1].read_text("utf-8"))  # noqa: S314 - our own text
    assert len(root.findall(".//{*}polyline")) == 2
    assert "do_bench" in "".join(root.itertext())


def test_page_of_nothing_claims_nothing(tmp_path: Path) -> None:
    proof = Proof(Raw(headers=(replace(HEADER, variants=(variant("copy", 0.0, None),)),)))
    assert {outcome for *_, outcome in targets(proof)} == {"not measured"}
    assert write_page(proof, tmp_path / "proof.md") == [tmp_path / "proof.md"]


def test_planted_pack_is_sound_and_other_tools_answer_or_say_why_not() -> None:
    cases = [
        f"{case}[us=200,change={change}]" for case in ("fma", "stream") for change in (0.0, 0.3)
    ]
    assert sorted(check_pack(planted)) == [f"planted.{case}" for case in cases]
    (source,) = packs_at(Path(planted.__file__))
    order = Order(
        variant=replace(variant("stream", 0.0, None), axes={"us": 200, "change": 0.0}),
        origin=source.origin,
        unit="unit0",
        device="cpu",
        seed=1,
        seconds=0.01,
        tools=("torch.utils.benchmark", "do_bench"),
        wave=made_up().waves[0],
    )
    with closing(Slot(0, Setup(device="cpu"))) as slot:
        found = {answer.tool: answer for answer in ask(slot, order)}
        lost = ask(slot, replace(order, variant=variant("none", 0.0, None)))
    assert (found["torch.utils.benchmark"].time_us or 0) > 1
    assert found["do_bench"].time_us is None
    assert found["do_bench"].reason
    assert [(each.time_us, each.reason) for each in lost] == 2 * [(None, "KeyError: 'none'")]


@pytest.mark.parametrize("kernel", ["chain", "nothing"])
def test_planted_kernels_compile(kernel: str) -> None:
    core = pytest.importorskip("cuda.core")
    source = Path(planted.__file__).with_suffix(".cu").read_text(encoding="utf-8")
    program = core.Program(source, "c++", core.ProgramOptions(std="c++17", arch="sm_90a"))
    made = program.compile("cubin", name_expressions=(kernel,))
    assert kernel.encode() in bytes(made.code)


Call = Callable[..., int]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in a project in ``tmp_path``."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def called(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["perfsuite", "prove", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return called


def test_interrupted_command_judges_and_renders_what_it_measured(
    tmp_path: Path, call: Call
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "perfsuite.cli", "prove", "--device", "fake", "--time", "1h"],
        stdout=subprocess.PIPE,
        text=True,
        env={**child_environment(), "TMPDIR": str(tmp_path)},
    )
    assert child.stdout is not None
    with child.stdout as said:
        assert any("panel turn 10 took" in line for line in said)
        child.send_signal(signal.SIGINT)
        assert "interrupted: what was measured is kept" in said.read()
    assert child.wait(20) == 0
    (raw,) = (tmp_path / ".perfsuite" / "proofs").glob("*.jsonl")
    found = read_raw([raw])
    assert {wave.variant for wave in found.waves} == set(found.variants)
    seen = by_kernel(list(comparisons(found, known=0)))
    assert seen["fma 200", 0.0].wrong.part == 0
    assert seen["fma 200", 0.3].found.value == 1
    page = (tmp_path / "reports" / "proof.md").read_text(encoding="utf-8")
    assert call("--from", str(raw), "--page", "again.md") == 0
    again = (tmp_path / "again.md").read_text(encoding="utf-8")
    assert again == page.replace("proof-roc", "again-roc")


def test_command_ends_with_its_time_or_refuses(
    tmp_path: Path, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there.jsonl").touch()
    with RunFile.create(tmp_path, night(1, "a", copy=12.5)) as file:
        run = f"--run {file.path}"
    measured = "--device fake --time 0.01s --raw raw.jsonl"
    for args, status, told in (
        (f"{measured} --page page.md", 0, "2 ladders, 4 variants"),
        (measured, 2, "cannot create the raw data: File exists"),
        ("--time 20", 2, "write 90s"),
        ("--from raw.jsonl --page there.jsonl/page.md", 2, "what was measured is kept"),
        (f"{run} {run}", 2, "it would be compared with itself"),
        (f"--from raw.jsonl {run}", 2, "beside raw data of Fake Device"),
    ):
        assert call(*args.split()) == status
        assert told in "".join(capfd.readouterr())
    assert not read_raw([tmp_path / "raw.jsonl"]).waves
    assert "not measured" in (tmp_path / "page.md").read_text(encoding="utf-8")


def night(minute: int, unit: str, **times_us: float) -> Run:
    run = finished(times_us, unit=unit, run_id=f"night-{minute}")
    facts = replace(run.facts, unit=unit)
    return replace(run, started=f"2026-11-21T10:{minute:02}:00+00:00", facts=facts)


def test_whole_runs_are_compared_with_the_newest_before_them_at_home_and_away() -> None:
    runs = [night(1, "b", copy=12.5), night(3, "a", copy=12.5, add=3.0), night(2, "a", copy=12.5)]
    found = list(nights(runs))
    assert [(each.unit, each.before, each.known) for each in found] == [
        ("a", ("b",), 1),
        ("a", ("a",), 0),
        ("a", ("b",), 1),
    ]
    assert Tally(found).words == {Word.SAME: 3}
    first, second = night(1, "a", copy=12.5, add=3.0), night(2, "a", copy=14.0, add=3.0)
    moved = Tally(list(nights([first, second])))
    assert (moved.wrong.part, moved.wrong.total) == (1, 2)
    # The confirmation that a run holds decides.
    again = result(second.variants[0].id, 12.5, unit="a", stage=Stage.CONFIRM)
    confirmed = second.having(results=(*second.results, again))
    assert Tally(list(nights([first, confirmed]))).words == {Word.SAME: 2}
