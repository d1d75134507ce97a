"""Claims that a run leaves open: two variants in turns inside one process."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from against_data import PACK, write
from msgspec import structs
from store_data import FACTS, TWICE
from test_runner import Log

from perfsuite import model
from perfsuite.judge.compare import Policy
from perfsuite.judge.noise import entries_of
from perfsuite.judge.verdict import judge_abba
from perfsuite.run.config import Config
from perfsuite.run.run import execute
from perfsuite.workers.panel import seats_of

CLAIM = """
    return [double, perfsuite.Claim(
        name="twice", case="double", faster={"impl": "one"}, than=THAN, by=BY,
        source="made up")]
"""
OWN = '{"impl": "two"}'
CRASH = "    perfsuite.times = getattr(perfsuite, 'times', 0) + 1\n    assert perfsuite.times < 2\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
def test_a_claim_left_open_is_decided_by_abba(project: Path, than: str, ratio: float) -> None:
    claim, run = claimed(project, "2.0", two=201.0, than=than)
    assert claim.word is model.ClaimWord.HELD
    assert "decided by 18 rounds, alternating inside 6 processes" in claim.reason
    assert claim.ratio == pytest.approx(ratio, abs=0.003)
    assert {result.claim for result in run.aside} == {claim.claim}
    assert [len(result.evidence[0].blocks) for result in run.aside] == [6, 6]
    kept = entries_of(run)[run.variants[0].id].metrics["time_us"].values
    assert [len(values) for values in kept.values()] == [run.settings.processes]


def test_a_claim_that_compares_with_a_pack_that_is_not_there_says_so(project: Path) -> None:
    claim, _ = claimed(project, "2.0", than='"gone.double[impl=two]"')
    assert (claim.word, claim.fails) == (model.ClaimWord.NOT_APPLICABLE, False)
    assert claim.reason == "gone.double[impl=two] was not part of the run"


def test_a_claim_that_the_whole_lacks_is_in_no_shard(project: Path) -> None:
    config = asked(project, "2.0", than='"other.no[]"', share=(5, 5))
    assert ([one.id for one in config.variants], config.claims) == (["acme.double[impl=one]"], ())


def test_packs_with_a_module_of_one_name_are_not_paired(project: Path) -> None:
    both = project / "a", project / "o"
    for folder, name in zip(both, ("acme", "other"), strict=True):
        folder.mkdir()
        write(folder, speed='US = {"one": 100.0, "two": 201.0}\n')
        entry = f'[project.entry-points.perfsuite]\n{name} = "{name}"\n'
        (folder / "pyproject.toml").write_text(entry, encoding="utf-8")
    claim, _ = claimed(project, "2.0", than='"other.double[impl=two]"', at=both)
    assert (claim.word, "two packs have a module 'speed'" in claim.reason) == ("unclear", True)


def test_claims_past_the_limit_or_that_crash_stay_open_and_say_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, _ = claimed(project, "1.0", pack=PACK.replace("    def fn", f"{CRASH}    def fn"))
    assert (claim.word, "ended as error: AssertionError" in claim.reason) == ("unclear", True)
    monkeypatch.setattr("perfsuite.run.run.LIMIT_S", 0.0)
    claim, _ = claimed(project, "1.0")
    assert claim.word is model.ClaimWord.UNCLEAR
    assert claim.reason.endswith("not measured inside one process: the limit is 20 claims, 0 s")


def test_legs_alternate_by_abba_in_random_order() -> None:
    def legs(processes: int, seed: str) -> str:
        waves = seats_of(processes, together=1, slots=3, seed=seed)
        return "".join(seat.side for (seat,) in waves)

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


def groups(ratios: Sequence[float], seed: int, within: float = 0.002) -> list[model.Result]:
    """Return made-up groups of ABBA of processes with these ratios, whose level drifts by 5 %."""
    source = random.Random(seed)  # noqa: S311 - made-up samples
    sides: tuple[list[model.Evidence], list[model.Evidence]] = ([], [])
    for ratio in ratios:
        levels = [100 * math.exp(0.05 * source.gauss(0, 1)) for _ in range(3) for _ in range(2)]
        for side, factor in zip(sides, (1.0, ratio), strict=True):
            blocks = tuple(
                model.Block(time_us=(level * factor * math.exp(source.gauss(0, within)),))
                for level in levels
            )
            side.append(model.Evidence(slot=0, seed=0, blocks=blocks))
    return [
        model.Result(variant=name, status=model.Status.OK, evidence=tuple(side))
        for name, side in zip(("a", "b"), sides, strict=True)
    ]


def word_of(ratios: Sequence[float], seed: int, by: float = 2.0) -> model.ClaimWord:
    claim = structs.replace(TWICE, by=by)
    verdict = judge_abba(claim, groups(ratios, seed), facts=FACTS, policy=Policy())
    assert verdict is not None
    return verdict.word


def test_abba_decides_what_drift_would_hide_and_not_what_is_on_the_edge() -> None:
    source = random.Random(7)  # noqa: S311 - made-up samples

    def ratios(center: float) -> list[float]:
        return [center * math.exp(source.gauss(0, 0.002)) for _ in range(6)]

    held = Counter(word_of(ratios(2.0 * 1.01), seed) for seed in range(100))
    broken = Counter(word_of(ratios(2.0 / 1.01), seed) for seed in range(100))
    edge = Counter(word_of(ratios(2.0), seed) for seed in range(400))
    assert held == {model.ClaimWord.HELD: 100}
    assert broken == {model.ClaimWord.BROKEN: 100}
    assert edge[model.ClaimWord.UNCLEAR] >= 0.94 * 400
