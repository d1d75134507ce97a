"""Claims that a run leaves open: pairs of two variants, and the order that sides take turns in."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from against_data import PACK, write
from test_runner import Log

from perfsuite import model
from perfsuite.judge.noise import entries_of
from perfsuite.run.config import ALWAYS, Config
from perfsuite.run.run import execute
from perfsuite.workers.panel import seats_of

CLAIM = """
    return [double, perfsuite.Claim(
        name="twice", case="double", faster={"impl": "one"}, than=THAN, by=BY,
        source="made up")]
"""
OWN = '{"impl": "two"}'
CRASH = """    with open(impl, "a") as file:
        assert file.write("x") and (impl == "one" or file.tell() < 4)
"""


@pytest.fixture(autouse=True)
def _path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))


def asked(
    project: Path, by: str, pack: str = PACK, two: float = 100.0, than: str = OWN, **more: Any
) -> Config:
    speed = f'US = {{"one": 100.0, "two": {two}}}\n'
    own = pack.replace("    return [double]\n", CLAIM.replace("BY", by).replace("THAN", than))
    write(project, acme=own, other=PACK.replace("US[impl]", "US[impl] + 0.5"), speed=speed)
    both = more.pop("at", (project / "acme.py", project / "other.py"))
    more |= {"device": "fake", "only": tuple(map(str, both))}
    return Config(root=project, settings=model.Settings(samples=8), **more).chosen()


def claimed(project: Path, by: str, **more: Any) -> tuple[model.ClaimVerdict, model.Run]:
    run = execute(asked(project, by, **more), Log()).run
    (claim,) = run.claims
    return claim, run


@pytest.mark.parametrize(("than", "ratio"), [(OWN, 2.01), ('"other.double[impl=two]"', 2.015)])
def test_a_claim_left_open_is_decided_by_pairs(project: Path, than: str, ratio: float) -> None:
    claim, run = claimed(project, "2.0", two=201.0, than=than)
    assert claim.word is model.ClaimWord.HELD
    assert re.fullmatch(r"95 % interval [\d.]+x to [\d.]+x; measured by 6 pairs .*", claim.reason)
    assert claim.ratio == pytest.approx(ratio, abs=0.003)
    assert {result.claim for result in run.aside} == {claim.claim}
    assert {result.side: len(result.evidence) for result in run.aside} == {"A": 6, "B": 6}
    assert not any(one.is_paired for one in run.variants)
    kept = entries_of(run)[run.variants[0].id].metrics["time_us"].values
    assert [len(values) for values in kept.values()] == [run.settings.processes]


def test_a_claim_that_compares_with_a_pack_that_is_not_there_says_so(project: Path) -> None:
    claim, _ = claimed(project, "2.0", than='"gone.double[impl=two]"')
    assert (claim.word, claim.fails) == (model.ClaimWord.NOT_APPLICABLE, False)
    assert claim.reason == "gone.double[impl=two] was not part of the run"


def test_a_claim_that_the_whole_lacks_is_in_no_shard(project: Path) -> None:
    config = asked(project, "2.0", than='"other.no[]"', share=(5, 5))
    assert ([one.id for one in config.variants], config.claims) == (["acme.double[impl=one]"], ())


def test_packs_with_a_module_of_one_name_are_paired(project: Path) -> None:
    both = project / "a", project / "o"
    for folder, name in zip(both, ("acme", "other"), strict=True):
        folder.mkdir()
        write(folder, speed='US = {"one": 100.0, "two": 201.0}\n')
        entry = f'[project.entry-points.perfsuite]\n{name} = "{name}"\n'
        (folder / "pyproject.toml").write_text(entry, encoding="utf-8")
    claim, _ = claimed(project, "2.0", than='"other.double[impl=two]"', at=both)
    assert (claim.word, "by 6 pairs" in claim.reason) == ("held", True)


@pytest.mark.parametrize(("last", "sides"), [("B", "BA"), ("A", "BAA")])
def test_a_resumed_run_takes_pairs_once(project: Path, last: str, sides: str) -> None:
    config = asked(project, "1.0")
    file = execute(config, Log()).run_file
    head, mark, _ = file.read_text().partition(f'"side":"{last}","claim":"acme.double:twice[]"}}\n')
    file.write_text(head + mark)
    run = execute(replace(config, resume=ALWAYS), Log()).run
    assert "".join(each.side for each in run.aside) == sides
    assert (run.claims[0].word, "by 6 pairs" in run.claims[0].reason) == ("unclear", True)


def test_claims_past_the_limit_or_that_crash_stay_open_and_say_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, log = PACK.replace("    def fn", f"{CRASH}    def fn"), Log()
    (claim,) = execute(asked(project, "1.0", pack=pack), log).run.claims
    assert claim.word is model.ClaimWord.UNCLEAR
    assert any(each.startswith(f"a pair of claim {claim.claim} ended as") for each in log.notes)
    assert "; acme.double[impl=two] ended as error: AssertionError" in claim.reason
    assert (project / "one").stat().st_size < 6  # the first pass, and what began before that
    monkeypatch.setattr("perfsuite.run.run.LIMIT_S", 0.01)  # pairs would take longer
    claim, _ = claimed(project, "1.0")
    assert claim.reason.endswith("no pairs of both sides: the limit is 20 claims, 0.01 s")


def test_legs_alternate_by_abba_in_random_order() -> None:
    def legs(processes: int, seed: str) -> str:
        return "".join(seat.side for (seat,) in seats_of(processes, together=1, slots=3, seed=seed))

    found = [legs(4, str(seed)) for seed in range(50)]
    groups = Counter(text[start : start + 4] for text in found for start in (0, 4))
    assert set(groups) == {"ABBA", "BAAB"}
    assert min(groups.values()) > 25
    assert legs(3, "x") == legs(4, "x")[:6]


@pytest.mark.parametrize(("together", "slots"), [(3, 3), (6, 6), (1, 3), (2, 2), (1, 1)])
def test_each_slot_carries_both_arms_alike(together: int, slots: int) -> None:
    waves = seats_of(6, together=together, slots=slots, seed="x")
    assert {len(wave) for wave in waves} == {min(together, 2)}
    assert all(len({seat.slot for seat in wave}) == len(wave) for wave in waves)
    seats = [seat for wave in waves for seat in wave]
    count = Counter((seat.slot, seat.side) for seat in seats)
    assert all(count[slot, model.Side.A] == count[slot, model.Side.B] for slot, _ in count)
    assert [seat.process for seat in seats] == list(range(12))
