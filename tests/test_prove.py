"""The proof: on processes of known truth, and from end to end."""

from __future__ import annotations

import gzip
import math
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.model import Block, Evidence, Result, Stage, Status, Variant, Word, Work, variant_id
from perfsuite.prove import collect, planted
from perfsuite.prove.page import (
    HOME,
    PAIRS,
    WRONG,
    Deck,
    Proof,
    Share,
    Tally,
    Target,
    tallies,
    trials,
    write_page,
)
from perfsuite.store.files import encode
from perfsuite.testing import check_pack
from perfsuite.workers.process import Setup, Slot, child_environment

NIGHTS = Path(__file__).parents[1] / "docs/proof/nights"
HEADER = collect.read_raw([NIGHTS / "20261121-one-card-1.jsonl.gz"])[0].header


def variant(name: str, change: float, work: Work | None) -> Variant:
    info, axes = replace(HEADER.variants[0].case, name=name), {"change": change}
    identity = variant_id("planted", name, axes)
    return replace(HEADER.variants[0], id=identity, case=info, axes=axes, work=work)


def night(variants: Sequence[Variant], waves: Sequence[collect.Wave]) -> collect.Night:
    own = replace(HEADER, variants=tuple(variants))
    return collect.Night(name="made up", header=own, waves=tuple(waves), readings=())


def process(time_us: float, cycles: float) -> Evidence:
    block = Block(time_us=(time_us,), cycles=(cycles,))
    return Evidence(slot=0, seed=0, unit="unit0", blocks=(block,))


def made_up(
    *, between: float = 0.0005, changes: Sequence[float] = (0.01,), units: int = 2, many: int = 24
) -> collect.Raw:
    """Processes whose truth is known: so many waves of each variant on each card, and pairs."""
    rnd = random.Random(1)  # noqa: S311 - made-up noise
    # 0.3 ms at the memory's rate.
    work = Work(read_bytes=6.5e8, write_bytes=6.5e8)
    variants = [variant("copy", each, work) for each in (0.0, *changes)]

    def drawn(center: float, unit: str, count: int) -> tuple[Evidence, ...]:
        times = [center * math.exp(rnd.gauss(0, between)) for _ in range(count)]
        return tuple(replace(process(time, 1600 * time), unit=unit) for time in times)

    found = []
    for one in variants:
        center = 300 * (1 + float(one.axes["change"]))
        for unit in (f"unit{number}" for number in range(units)):
            alone = collect.Wave(variant=one.id, unit=unit, wall_s=1.0)
            for _ in range(many):
                found.append(replace(alone, processes=drawn(center, unit, 3)))
                both = {"processes": drawn(center, unit, 6), "beside": drawn(300, unit, 6)}
                found.append(replace(alone, **both))
    return collect.Raw((night(variants, found),))


def by_group(raw: collect.Raw) -> dict[tuple[float, str], Tally]:
    """Count the words by the change and by what decides."""
    return tallies(((e.change, e.relation), e.verdict) for e in trials(Deck(raw)))


def test_trials_share_no_process_and_the_first_say_only_how_quiet_a_kernel_is() -> None:
    raw = made_up(units=4)
    own = iter(range(10**6))
    numbered = [
        replace(
            each,
            processes=tuple(
                replace(process(300 + 0.01 * t, 5e5 + 20 * t), unit=each.unit)
                for t in islice(own, len(each.processes))
            ),
        )
        for each in raw.nights[0].waves
    ]
    deck = Deck(collect.Raw((replace(raw.nights[0], waves=tuple(numbered)),)))
    assert len(deck.quiet) == 4
    found = list(trials(deck))
    by = {(each.relation, each.change) for each in found}
    relations = [PAIRS, HOME, *(f"{n} other card{'s' * (n > 1)} known" for n in (1, 2, 3))]
    assert by == {(relation, change) for relation in relations for change in (0.0, 0.01)}
    for change in (0.0, 0.01):
        told = [e for e in found if e.change == change and e.triage]
        # A screen is in one trial.
        assert len({e.triage.changes[0].current for e in told if e.triage}) == len(told)
    # No two trials of unchanged code share a baseline, either.
    told = [e for e in found if not e.change and len(e.before) == 1]
    assert len({e.triage.changes[0].baseline for e in told if e.triage}) == len(told)
    # Two waves of each card say how quiet it is.
    assert sum(1 + len(e.before) for e in found if e.triage and not e.change) <= 4 * (24 - 2)


def test_made_up_changes_are_found_and_noise_hides_them() -> None:
    quiet = by_group(made_up(changes=(0.01,)))
    for by in (PAIRS, HOME, "1 other card known"):
        assert quiet[0.01, by].share(Word.SLOWER).part == quiet[0.01, by].words.total() > 0
        assert quiet[0.0, by].share(*WRONG).part == 0
    loud = made_up(between=0.03)
    assert by_group(loud)[0.01, PAIRS].share(Word.SLOWER).part == 0
    assert not any(Deck(loud).quiet.values())
    assert {each.kind for each in trials(Deck(loud))} == {"not quiet"}


def test_a_level_that_moved_is_environment_and_counts_as_a_false_alarm() -> None:
    (night,) = made_up(units=1).nights
    # The card is 3 % slower for each second wave, and for both sides of all pairs.
    late = [
        replace(
            each,
            processes=tuple(map(slowed, each.processes)),
            beside=tuple(map(slowed, each.beside)),
        )
        if each.beside or index % 4 == 2
        else each
        for index, each in enumerate(night.waves)
    ]
    words = by_group(collect.Raw((replace(night, waves=tuple(late)),)))
    assert words[0.0, HOME].words[Word.ENVIRONMENT] == words[0.0, HOME].share(*WRONG).part > 0
    assert words[0.0, PAIRS].share(*WRONG).part == 0


def slowed(one: Evidence) -> Evidence:
    ((time_us,),), ((cycles,),) = one.samples("time_us"), one.samples("cycles")
    return replace(process(1.03 * time_us, 1.03 * cycles), unit=one.unit)


def test_only_bounds_on_the_right_side_are_met() -> None:
    def outcome(part: int, total: int, limit: float, *, is_most: bool = False) -> str:
        return Target("", Share(part, total), limit, is_most=is_most).outcome

    assert outcome(1, 1, 0.99) == "not shown"
    assert outcome(299, 299, 0.99) == "met"
    assert outcome(98, 99, 0.99) == "not shown"
    assert outcome(90, 99, 0.99) == "**missed**"
    assert outcome(0, 0, 0.9) == "not shown"
    assert outcome(0, 2900, 0.001, is_most=True) == "not shown"
    assert outcome(0, 2995, 0.001, is_most=True) == "met"
    assert outcome(9, 2995, 0.001, is_most=True) == "**missed**"


def test_bounds_are_exact() -> None:
    assert Share(0, 2995).bounds()[1] == pytest.approx(0.001, rel=0.01)
    assert Share(90, 100).bounds() == pytest.approx((0.836, 0.945), abs=0.002)
    assert Share(0, 0).bounds() == (0.0, 1.0)


def written(path: Path, *lines: collect.Line) -> Path:
    with path.open("wb", buffering=0) as file:
        for line in lines:
            collect.append(file, line)
    return path


def test_raw_data_survives_an_interruption(tmp_path: Path) -> None:
    (night,) = made_up(many=3).nights
    raw = collect.Raw((replace(night, name="raw"),))
    path = written(tmp_path / "raw.jsonl", night.header, *night.waves, *night.readings)
    path.write_bytes(path.read_bytes() + b'["Wave",{"variant":"pla')
    packed = tmp_path / "raw.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert collect.read_raw([path]) == collect.read_raw([packed]) == [raw]
    with pytest.raises(StoreError, match="named twice"):
        collect.read_raw([tmp_path])
    packed.unlink()
    for name, header in (
        ("later", replace(night.header, started="later")),
        ("other", replace(night.header, sku=replace(night.header.sku, slug="b200"))),
        ("newer", replace(night.header, started="newer", code="another")),
    ):
        written(tmp_path / f"{name}.jsonl", header, night.waves[0])
    # One code on one product is pooled; the newest is last.
    found = collect.read_raw([tmp_path])
    names = [[each.name for each in group.nights] for group in found]
    assert sorted(names) == [["newer"], ["other"], ["raw", "later"]]
    assert names[-1] == ["newer"]
    (pooled,) = [group for group in found if len(group.nights) > 1]
    assert pooled.waves == [*night.waves, night.waves[0]]


HEAD = encode(("Header", HEADER)) + b"\n"
PACKED = gzip.compress(b"raw" * 100, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("raw", b"", "no raw data"),
        ("raw", HEAD.replace(b"proof/2", b"proof/9"), "proof/9"),
        ("raw", HEAD + b'["Wave",{}]\n', r"variant`\n.*raw:2"),
        ("raw", HEAD + b'["Other",{}]\n', r"unknown kind 'Other'\n.*raw:2"),
        ("raw", HEAD + b'["Wave",\xff]\n', "damaged line"),
        ("none", b"", "cannot be read"),
        ("raw.gz", PACKED[:20], "cannot be unpacked"),
        ("raw.gz", PACKED[:12] + b"raw" + PACKED[15:], "cannot be unpacked"),
    ],
)
def test_what_is_no_raw_data_is_refused(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    if data or name != "none":
        (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreError, match=message):
        collect.read_raw([tmp_path / name])


def test_a_failed_variant_keeps_its_reason() -> None:
    result = Result(variant="a", status=Status.CRASHED, stage=Stage.SCREEN, reason="signal 11")
    wave = collect.wave_of(result, "unit0")
    assert (wave.reason, wave.processes) == ("crashed: signal 11", ())
    assert Proof(collect.Raw((night([], [wave]),))).failed == {"crashed: signal 11": 1}
    ended = replace(result, status=Status.OK, evidence=(Evidence(slot=0, seed=0),))
    assert collect.wave_of(ended, "unit0", of_a=result).reason == "crashed: signal 11"


def test_page_says_what_is_shown_and_what_was_not_measured(tmp_path: Path) -> None:
    (first,) = made_up(between=0.0002, units=3).nights
    base = next(iter(first.header.variants))
    refused = collect.Reading(variant=base.id, unit="unit0", tool="nvbench", reason="no module")
    readings = [
        collect.Reading(variant=wave.variant, unit=wave.unit, tool="do_bench", time_us=300.0)
        for wave in first.waves
    ]
    older = replace(first, name="older", header=replace(first.header, commit="1234567"))
    raw = collect.Raw((replace(first, readings=(refused, *readings)),))
    proofs = [Proof(collect.Raw((older,)), draws=2), Proof(raw, draws=2)]
    write_page(proofs, tmp_path / "proof.md")
    text = (tmp_path / "proof.md").read_text(encoding="utf-8")
    assert all(f"{target.words} | {target.share}" in text for target in proofs[1].targets)
    assert text.index(f"## Code {first.header.version}") < text.index("## Code 1234567")
    assert "| older |" in text
    assert "No card was measured on two days" in text
    assert "nvbench gave no time: no module" in text
    assert "| perfsuite | 0.00 | 100 % |" in text
    assert "| do_bench | 0.00 | 0 % |" in text
    again = replace(first, header=replace(first.header, started="2026-12-01T00:00:00+00:00"))
    assert Proof(collect.Raw((first, again)), draws=1).repeated == 3


def test_planted_pack_is_sound_and_other_tools_answer_or_say_why_not() -> None:
    sizes = {"stream": "us=200", "issued": "burst=100"}
    cases = [f"{case}[{size},change={c}]" for case, size in sizes.items() for c in (0.0, 0.3)]
    assert set(check_pack(planted)) == {f"planted.{case}" for case in cases}
    order = collect.Order(
        variant=replace(variant("stream", 0.0, None), axes={"us": 200, "change": 0.0}),
        unit="unit0",
        device="cpu",
        seed=1,
        seconds=0.01,
        tools=("torch.utils.benchmark", "pytest-benchmark", "do_bench"),
        sets=1,
    )
    with closing(Slot(0, Setup(device="cpu"))) as slot:
        found = {answer.tool: answer for answer in collect.ask(slot, order)}
        lost = collect.ask(slot, replace(order, variant=variant("none", 0.0, None)))
    assert (found["torch.utils.benchmark"].time_us or 0) > 1
    assert (found["pytest-benchmark"].time_us or 0) > 1
    assert found["do_bench"].time_us is None
    assert found["do_bench"].reason
    assert [(each.time_us, each.reason) for each in lost] == 3 * [(None, "KeyError: 'none'")]


def test_planted_kernel_compiles() -> None:
    core = pytest.importorskip("cuda.core")
    source = Path(planted.__file__).with_suffix(".cu").read_text(encoding="utf-8")
    program = core.Program(source, "c++", core.ProgramOptions(std="c++17", arch="sm_90a"))
    assert b"chain" in bytes(program.compile("cubin", name_expressions=("chain",)).code)


Command = Callable[..., tuple[int, str]]


def test_interrupted_command_judges_and_renders_what_it_measured(
    tmp_path: Path, perfsuite: Command
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "perfsuite.cli", "prove", "--device", "fake", "--time", "1h"],
        stdout=subprocess.PIPE,
        text=True,
        env={**child_environment(), "TMPDIR": str(tmp_path)},
    )
    assert child.stdout is not None
    with child.stdout as said:
        turns = {"triage": 8, "pairs": 1}  # whole trials of the unchanged and of a change
        for line in said:
            turns = {act: n for act, n in turns.items() if f"{act} turn {n} took" not in line}
            if not turns:
                break
        child.send_signal(signal.SIGINT)
        assert "interrupted: what was measured is kept" in said.read()
    assert child.wait(20) == 1  # far too few for what is to be shown
    folder = tmp_path / ".perfsuite" / "proofs"
    (found,) = collect.read_raw([folder])
    assert {wave.variant for wave in found.waves if not wave.beside} == set(found.variants)
    # Side A is the unchanged code, whatever side B is.
    for wave in found.waves:
        if wave.beside:
            new, old = (each[0].samples("time_us")[0][0] for each in (wave.processes, wave.beside))
            assert new / old == pytest.approx(1.3 if "change=0.3" in wave.variant else 1.0, rel=0.1)
            assert len(wave.processes) == len(wave.beside) >= 6
    assert found.header.code == collect.code_of()
    words = by_group(found)
    assert words[0.0, HOME].share(*WRONG).part == 0
    assert words[0.3, PAIRS].share(Word.SLOWER).part == words[0.3, PAIRS].words.total() > 0
    page = (tmp_path / "reports" / "proof.md").read_text(encoding="utf-8")
    assert perfsuite("prove", "--from", str(folder), "--page", "again.md")[0] == 1
    assert (tmp_path / "again.md").read_text(encoding="utf-8") == page


def test_command_ends_with_its_time_or_refuses(tmp_path: Path, perfsuite: Command) -> None:
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "empty").mkdir()
    measured = "--device fake --time 0.01s --raw raw.jsonl"
    for args, status, told in (
        (f"{measured} --page page.md", 1, "2 ladders, 4 variants"),
        (measured, 2, "cannot create the raw data: File exists"),
        ("--time 20", 2, "write 90s"),
        ("--from raw.jsonl --page there.jsonl/page.md", 2, "what was measured is kept"),
        ("--from empty", 2, "no raw data there"),
    ):
        code, said = perfsuite("prove", *args.split())
        assert (code, told in said) == (status, True)
    assert not collect.read_raw([tmp_path / "raw.jsonl"])[0].waves
    assert "not shown" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_the_command_succeeds_where_all_is_met(
    tmp_path: Path, perfsuite: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (night,) = made_up(many=4).nights
    written(tmp_path / "raw.jsonl", night.header, *night.waves)
    assert perfsuite("prove", "--from", "raw.jsonl", "--page", "page.md")[0] == 1
    monkeypatch.setattr(Proof, "_targets", lambda _: [Target("easy", Share(9, 9), 0.7)])
    assert perfsuite("prove", "--from", "raw.jsonl", "--page", "page.md")[0] == 0
