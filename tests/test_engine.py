"""One variant in a worker, on the fake device: what is checked, sampled, settled and refused."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from perfsuite import Inspection, Metric, Regime, Scenario, Work, Workload, case
from perfsuite.boundary import CaseError, DeviceError, DisturbedError, WrongResultError
from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Group, Sample
from perfsuite.engine import measure
from perfsuite.engine.calibrate import SCATTERING, is_steady, unsteady_note
from perfsuite.engine.measure import Quads, Session
from perfsuite.model import Case, Evidence, Health, Sampling, Settings

NAN = float("nan")
AWAITED = Regime.END_TO_END


def made(build: Callable[[Any], Any], **fields: Any) -> Case:
    """Return a case of a builder without axes of its own."""

    @case(axes={"n": [64]}, source="made up", **fields)
    def own(ctx: Any, n: int) -> Any:
        """Do so."""
        return build(ctx)

    return own


def copying(spend_us: float, **fields: Any) -> Case:
    """Return a case that copies 64 numbers and says it takes ``spend_us``."""

    def build(ctx: Any) -> Workload:
        def fn(x: list[float], y: list[float]) -> None:
            ctx.spend(spend_us)
            y[:] = x

        return Workload(
            fn=fn,
            wrong=lambda x, y: y.__setitem__(slice(0, 63), x[:-1]),
            reference=lambda x, y: x,
            make_inputs=lambda rng: (rng.randn(64), rng.empty(64)),
            exact=lambda: {"launches": 3},
        )

    return made(build, metrics=[Metric("launches")], **fields)


def session_of(chosen: Case, device: FakeDevice | None = None, **settings: Any) -> Session:
    return Session(device or FakeDevice(seed=1), chosen, {"n": 64}, Settings(**settings), 7)


def prepared(chosen: Case, device: FakeDevice | None = None) -> Session:
    session = session_of(chosen, device)
    session.prepare(lambda phase: None)
    return session


def measured(
    chosen: Case, device: FakeDevice | None = None, *, turns: int = 1, is_paired: bool = False
) -> Evidence:
    session = prepared(chosen, device)
    for _ in range(turns):
        session.block(is_paired=is_paired)
    return session.finish()


class Changing(FakeDevice):
    """Hands its samples, while ``is_on``, to ``change``, with the number of those before."""

    change: Callable[[int, Sample], Sample] = staticmethod(lambda index, sample: sample)
    most = 100
    is_on = True

    def __init__(self, **fields: Any) -> None:
        super().__init__(seed=1)
        self.taken = 0
        vars(self).update(fields)

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        samples = super().sample(group, count, **conditions)
        if self.is_on:
            samples = [self.change(self.taken + i, s) for i, s in enumerate(samples)][: self.most]
        self.taken += count
        return samples


@pytest.mark.parametrize(
    ("settings", "phases"),
    [({}, ["build", "check", "calibrate", "settle"]), ({"check_only": True}, ["build", "check"])],
)
def test_phases_are_announced_in_order(settings: dict[str, Any], phases: list[str]) -> None:
    announced: list[str] = []
    session = session_of(copying(10.0), **settings)
    session.prepare(announced.append)
    assert (announced, session.finish().blocks) == (phases, ())
    assert session.finish().exact["launches"] == 3.0


@pytest.mark.parametrize(("spend_us", "launches"), [(10.0, 50), (5_000.0, 1)])
def test_samples_are_per_launch_and_last_long_enough(spend_us: float, launches: int) -> None:
    evidence = measured(copying(spend_us))
    (block,) = evidence.blocks
    assert evidence.launches == pytest.approx(launches, rel=0.1)
    assert block.time_us == pytest.approx([spend_us] * len(block.time_us), rel=0.05)
    assert block.cycles == pytest.approx([2000 * spend_us] * len(block.cycles), rel=0.05)
    assert not block.metrics


@pytest.mark.parametrize(
    ("fields", "cache_bytes", "pace", "sets"),
    [
        ({"work": lambda n: Work(read_bytes=n, flops=1000 * n)}, 0, 4.0, 1),
        ({"work": lambda n: Work(read_bytes=n)}, 0, 1.0, 1),
        ({"regime": AWAITED}, 0, 0.0, 1),
        ({}, 8 * 64 * 2 * 4, 4.0, 12),  # four input sets of two lists
        ({"cold": False}, 1 << 20, 4.0, 1),
    ],
)
def test_work_and_caches_decide_pace_and_cold_inputs(
    fields: dict[str, Any], cache_bytes: int, pace: float, sets: int
) -> None:
    device = FakeDevice(seed=1)
    device.cache_bytes = cache_bytes
    evidence = prepared(copying(10.0, **fields), device).finish()
    assert (evidence.pace, evidence.sets) == (pace, sets)
    assert (evidence.backend == "host") == (fields.get("regime") is AWAITED)


@pytest.mark.parametrize(("spend_us", "times", "beside"), [(20.0, 16, 5), (30e3, 5, 3)])
def test_awaited_launches_have_the_devices_own_time_beside(
    spend_us: float, times: int, beside: int
) -> None:
    for block in measured(copying(spend_us, regime=AWAITED), turns=2).blocks:
        assert (len(block.time_us), len(block.metrics["device_us"])) == (times, beside)
        assert block.metrics["device_us"] == pytest.approx([spend_us] * beside, rel=0.05)


@pytest.mark.parametrize(("spend_us", "launches"), [(1.0, 32), (40.0, 13), (90.0, 6), (200.0, 1)])
def test_a_launch_is_estimated_in_groups_no_longer_than_a_sample(
    spend_us: float, launches: int
) -> None:
    groups: list[int] = []

    class Counting(FakeDevice):
        def group(self, fn: Any, sets: Any, launches: int, *, backend: str) -> Any:
            groups.append(launches)
            return super().group(fn, sets, launches, backend=backend)

    prepared(copying(spend_us), Counting(seed=1))
    *estimated, chosen = groups
    assert max(estimated) == launches
    assert chosen == pytest.approx(500.0 / spend_us, rel=0.5)


@pytest.mark.parametrize(
    ("stretch", "more_sets", "is_taken"),
    [(2, 0, True), (9, 0, False), (1 / 9, 0, False), (1, 1, 0)],
)
def test_sampling_of_another_process_is_taken_over_where_it_is_near(
    stretch: float, more_sets: int, is_taken: object
) -> None:
    chosen = copying(10.0)
    usual = prepared(chosen).sampling
    assert usual is not None
    other = Sampling(round(stretch * usual.launches), usual.sets + more_sets)
    session = session_of(chosen)
    session.prepare(lambda phase: None, other)
    assert session.sampling == session.finish().sampling == (other if is_taken else usual)


def test_ranks_take_the_slowest_ones_launches() -> None:
    class Rank(FakeDevice):
        def agree(self, value: float) -> float:
            return max(value, 2 * value if value > 2 else value)

    assert measured(copying(20.0), Rank(seed=1)).launches < measured(copying(20.0)).launches


def test_lost_stamps_are_voided_and_counted() -> None:
    device = Changing(is_on=False)
    session = prepared(copying(10.0), device)
    first = device.taken
    device.change = lambda index, sample: Sample(NAN) if index < first + 2 else sample
    device.is_on = True
    session.block()
    (block,) = session.finish().blocks
    assert (block.voided, len(block.time_us)) == (2, Settings().samples - 2)


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("inf"), NAN])
@pytest.mark.parametrize("why", ["they have no time", "missed an SM"])
def test_too_many_lost_samples_are_a_disturbance(time_us: float, why: str) -> None:
    device = Changing(is_on=False, untimed=why, change=lambda index, _: Sample(time_us, time_us))
    session = prepared(copying(10.0), device)
    device.is_on = True
    with pytest.raises(DisturbedError, match=f"32 samples voided .*{why}"):
        session.block()


def test_first_launches_without_a_time_are_a_disturbance_and_one_is_none() -> None:
    lost = [lambda index, s: Sample(NAN) if index % 4 == 0 else s, lambda index, s: Sample(NAN)]
    prepared(copying(10.0), Changing(change=lost[0]))
    with pytest.raises(DisturbedError, match="no sample of the first launches"):
        prepared(copying(10.0), Changing(change=lost[1]))


@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_a_device_that_returns_too_few_samples_is_refused(most: int) -> None:
    with pytest.raises(DeviceError, match=f"device 'acme' returned {most} samples") as told:
        prepared(copying(10.0), Changing(name="acme", most=most)).block()
    assert "Changing.sample" in told.value.where


def test_a_slowdown_voids_the_block_and_it_is_taken_again() -> None:
    class Throttled(FakeDevice):
        bad = 0

        def health(self) -> Health:
            self.bad -= 1
            return Health(reasons=("hw_slowdown",) if self.bad >= 0 else ())

    device = Throttled(seed=1)
    session = prepared(copying(10.0), device)
    device.bad = 1
    session.block()
    (block,) = session.finish().blocks
    assert (block.voided, len(block.time_us)) == (Settings().samples, Settings().samples)
    device.bad = 99
    with pytest.raises(DisturbedError, match="hw_slowdown"):
        session.block()


def test_foreign_load_voids_a_block_and_lasting_load_the_variant() -> None:
    device = FakeDevice(seed=1)
    session = prepared(copying(10.0), device)
    device.foreign_percent = 4.0  # the fake device bears five
    session.block()
    assert session.finish().blocks[0].voided == 0
    device.foreign_percent = 30.0
    with pytest.raises(DisturbedError, match="foreign load of 30 %"):
        session.block()


def test_streams_left_running_are_an_error_of_the_case() -> None:
    class Unjoined(FakeDevice):
        def joins_streams(self, group: Group) -> bool:
            return False

    with pytest.raises(CaseError, match="streams have joined"):
        prepared(copying(10.0), Unjoined(seed=1))


def test_a_wrong_builder_is_named_and_a_block_needs_preparing() -> None:
    with pytest.raises(CaseError, match="None, no Workload"):
        prepared(made(lambda ctx: None))
    with pytest.raises(CaseError, match="before prepare"):
        session_of(copying(10.0)).block()


def doubling(**parts: Callable[..., Any]) -> Session:
    """Return the session of a workload that doubles numbers, some of its parts replaced."""
    good: dict[str, Any] = {
        "fn": lambda x: [2 * v for v in x],
        "wrong": lambda x: x,
        "reference": lambda x: [v + v for v in x],
        "make_inputs": lambda rng: (rng.randn(64),),
    }
    return session_of(made(lambda ctx: Workload(**{**good, **parts})), check_only=True)


def hands_back_the_first() -> Callable[..., Any]:
    kept: list[list[float]] = []

    def fn(x: list[float]) -> list[float]:
        kept.append([2 * v for v in x])
        return kept[0]

    return fn


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: [2.001 * v for v in x], "relative error"),
        (lambda x: [NAN] * len(x), "NaN"),
        (lambda x: None, "returned nothing"),
        (lambda x: [2 * v for v in x[:-1]], "63 values instead of 64"),
        (hands_back_the_first(), "relative error"),
    ],
)
def test_a_wrong_output_is_refused(fn: Callable[..., Any], said: str) -> None:
    with pytest.raises(WrongResultError, match=said):
        doubling(fn=fn).check(lambda phase: None)


def test_a_reference_that_accepts_the_negative_control_is_an_error() -> None:
    with pytest.raises(CaseError, match="accepts the negative control"):
        doubling(wrong=lambda x: [2 * v for v in x]).check(lambda phase: None)


def test_a_further_process_checks_once_and_plants_no_mistake() -> None:
    for is_thorough, counts in ((True, (3, 1)), (False, (2, 0))):  # one for the peak of memory
        calls: list[str] = []
        parts: dict[str, Callable[..., Any]] = {
            "fn": lambda x, calls=calls: [calls.append("fn") or 2 * v for v in x],
            "wrong": lambda x, calls=calls: [calls.append("wrong") or v for v in x],
        }
        doubling(**parts).check(lambda phase: None, is_thorough=is_thorough)
        assert (calls.count("fn") // 64, calls.count("wrong") // 64) == counts
    with pytest.raises(WrongResultError):
        doubling(fn=lambda x: x).check(lambda phase: None, is_thorough=False)


def test_what_does_not_settle_is_noted() -> None:
    wandering = Changing(change=lambda index, s: Sample(s.time_us * 1.2**index, s.cycles))
    session = session_of(copying(10.0), wandering, settle_s=0.01)
    session.prepare(lambda phase: None)
    evidence = session.finish()
    assert not evidence.settled
    assert "did not settle" in evidence.notes[0]


@pytest.mark.parametrize(
    ("spend_us", "lost_us", "most"),
    [(10.0, None, 160), (30e3, None, 28), (30e3, NAN, 30), (30e3, 0.0, 30)],
)
def test_launches_that_only_scatter_settle_soon(
    spend_us: float, lost_us: float | None, most: int
) -> None:
    def lose_one_in_eight(index: int, sample: Sample) -> Sample:
        return sample if lost_us is None or index % 8 < 7 else Sample(lost_us)

    device = Changing(within=0.2, change=lose_one_in_eight)
    assert prepared(copying(spend_us), device).finish().settled
    assert device.taken < most


# As many groups as fit the time limit on a GPU.
MOST = 280
SEEDS = range(25)
Level = Callable[[int], float]


def settled_at(level: Level, noise: float, seed: int, *, samples: int = 4) -> int:
    """Return after how many groups of samples a level with noise is steady, MOST if never.

    Without a tolerance, that three of them agree by luck is left out.
    """
    draw = random.Random(seed)  # noqa: S311 - noise, not secrets
    levels: list[float] = []
    for index in range(MOST):
        drawn = [level(index) * (1 + draw.gauss(0, noise)) for _ in range(samples)]
        levels.append(statistics.median(drawn))
        if is_steady(levels, 0.0):
            return index + 1
    return MOST


@pytest.mark.parametrize(
    ("levels", "steady"),
    [
        ([2.0, 1.0, 1.001, 1.0], True),
        ([2.0, 1.0, 1.001], False),
        ([1.0, 1.0], False),
        ([1.0 + 0.01 * index for index in range(SCATTERING)], False),
        ([1.0 + 0.01 * (index % 2) for index in range(SCATTERING)], True),
        ([1.0, math.inf, 1.1] * SCATTERING, False),
        ([1.0, NAN, 1.1] * SCATTERING, False),
    ],
)
def test_groups_that_agree_or_scatter_without_a_drift_are_steady(
    levels: list[float], steady: object
) -> None:
    assert is_steady(levels, 0.002) is steady


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_what_scatters_about_one_level_settles_soon(noise: float, samples: int) -> None:
    found = sorted(settled_at(lambda index: 1.0, noise, seed, samples=samples) for seed in SEEDS)
    assert found[0] >= SCATTERING
    assert found[len(found) // 2] <= SCATTERING + 1
    assert found[-1] <= 2.5 * SCATTERING


@pytest.mark.parametrize(
    ("level", "noise", "samples", "least"),
    [
        (lambda index: math.exp(-0.01 * index), 0.02, 4, MOST),
        (lambda index: math.exp(0.01 * index), 0.02, 4, MOST),
        (lambda index: math.exp(-0.01 * index), 0.01, 1, MOST),
        (lambda index: math.exp(0.01 * index), 0.01, 1, MOST),
        (lambda index: 1.1 if index < SCATTERING - 4 else 1.0, 0.01, 4, SCATTERING + 2),
    ],
)
def test_a_drift_does_not_settle_and_a_step_is_outlasted(
    level: Level, noise: float, samples: int, least: int
) -> None:
    assert all(settled_at(level, noise, seed, samples=samples) >= least for seed in SEEDS)


@pytest.mark.parametrize(
    ("groups", "noise", "samples", "share", "most"),
    # Of 10 %, less than the error of a block of 16 such samples; single ones hide no long decay.
    [(5, 0.03, 4, 0.9, 0.03 / math.sqrt(16)), (50, 0.005, 1, 0.5, 0.04)],
)
def test_a_warm_up_is_over_before_what_scatters_is_steady(
    groups: int, noise: float, samples: int, share: float, most: float
) -> None:
    def level(index: int) -> float:
        return 1 + 0.1 * math.exp(-index / groups)

    left = sorted(level(settled_at(level, noise, seed, samples=samples)) - 1 for seed in SEEDS)
    assert left[int(share * len(left))] < most


def test_the_note_names_the_last_groups() -> None:
    assert "only 1 of 3 groups" in unsteady_note([1.0], 3.0)
    assert "differ by 2.00%" in unsteady_note([1.0, 1.0, 1.0, 1.02, 1.0], 3.0)


Counts = Mapping[str, float]


def inspected(
    read: Counts, reference: Counts | None = None, wrong: Counts | None = None, **fields: Any
) -> Case:
    inspection = Inspection(
        read=lambda: read,
        reference=None if reference is None else lambda: reference,
        wrong=None if wrong is None else lambda: wrong,
    )
    given = {"regime": Regime.EXACT, "metrics": [Metric("registers")], **fields}
    return made(lambda ctx: inspection, **given)


def test_an_inspection_is_counted_and_not_timed() -> None:
    evidence = measured(inspected({"registers": 40}, {"registers": 40}, {"registers": 39}))
    assert (evidence.exact, evidence.blocks) == ({"registers": 40.0}, ())


@pytest.mark.parametrize(
    ("chosen", "error", "said"),
    [
        (inspected({"registers": 41}, {"registers": 40}, {"registers": 39}), WrongResultError,
         "registers is 41 instead of 40"),
        (inspected({"registers": 40}, {"registers": 40}, {"registers": 40}), CaseError,
         "accepts the negative control"),
        (inspected({"spills": 1}), CaseError, "'spills' that the case does not declare"),
        (inspected({"registers": NAN}), CaseError, "no number that can be stored"),
        (inspected({"registers": 40}, regime=Regime.PACED), CaseError, "regime=Regime.EXACT"),
    ],
)  # fmt: skip
def test_an_inspection_that_cannot_be_right_is_refused(
    chosen: Case, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measured(chosen)


def played(later: Any = (1.0, 2.0), *, first: Any = (1.0, 2.0), wrong: float = 3.0) -> Case:
    """Return a scenario that serves ``first`` when it is checked, and ``later`` tokens then."""

    def build(ctx: Any) -> Scenario:
        left = [first]

        def play(seed: int) -> Any:
            served = left.pop() if left else later
            return served if served is None else ([*served], {"ttft_ms": 5.0})

        return Scenario(
            play=play, reference=lambda seed: [1.0, 2.0], wrong=lambda seed: [1.0, wrong]
        )

    return made(build, regime=AWAITED, metrics=[Metric("ttft_ms", "ms")])


def test_a_scenario_has_times_and_its_own_metrics() -> None:
    evidence = measured(played())
    (block,) = evidence.blocks
    assert (block.metrics, evidence.error) == ({"ttft_ms": (5.0,)}, 0.0)
    assert [time_us > 0 for time_us in block.time_us] == [True]


@pytest.mark.parametrize(
    ("chosen", "error", "said"),
    [
        (played(first=(1.0, 9.0)), WrongResultError, "served differs"),
        (played(later=(1.0, 9.0)), WrongResultError, "served differs"),
        (played(wrong=2.0), CaseError, "accepts the negative control"),
        (played(first=None), CaseError, "not its output and a mapping"),
    ],
)
def test_a_scenario_that_is_wrong_at_first_or_later_is_refused(
    chosen: Case, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measured(chosen)


class LongElsewhere(FakeDevice):
    """A rank whose peer plays for a minute."""

    def agree(self, value: float) -> float:
        return max(value, 60e6)


@pytest.mark.parametrize(
    ("device", "most_us", "is_paired", "blocks"),
    [
        (FakeDevice, 1e9, False, 3),
        (FakeDevice, -1.0, False, 1),
        (FakeDevice, -1.0, True, 3),
        (LongElsewhere, measure.PLAYS_US, False, 1),
    ],
)
def test_long_plays_let_turns_pass(
    device: type[FakeDevice],
    most_us: float,
    is_paired: Any,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "PLAYS_US", most_us)
    found = measured(played(), device(seed=1), turns=3, is_paired=is_paired)
    assert len(found.blocks) == blocks


def test_both_sides_of_a_quad_are_played_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PLAYS_US", -1.0)
    quads = Quads(session_of(played()), session_of(played()), sampling=None, seed=7)
    quads.prepare(lambda phase: None)
    for _ in range(3):
        quads.block()
    assert [len(side.blocks) for side in quads.finish()] == [6, 6]
