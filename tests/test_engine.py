"""One variant in a worker, on the fake device: what is checked, sampled, settled and refused."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from perfsuite import Inspection, Metric, Regime, Scenario, Work, Workload, case
from perfsuite.boundary import CaseError, DeviceError, DisturbedError, WrongResultError
from perfsuite.devices.protocol import Group, Sample
from perfsuite.engine import measure
from perfsuite.engine.calibrate import SCATTERING, is_steady
from perfsuite.engine.check import Checked
from perfsuite.engine.measure import Session
from perfsuite.model import Case, Evidence, Health, Sampling, Settings
from perfsuite.testing.fake import FakeDevice

NAN = float("nan")
AWAITED, SUSTAINED = Regime.END_TO_END, Regime.SUSTAINED
BLOCK = Settings().samples


def made(build: Callable[[Any], Any], **fields: Any) -> Case:
    """Return a case of a builder without axes of its own."""

    @case(smoke={"n": [64]}, source="made up", **fields)
    def own(ctx: Any, n: int) -> Any:
        """Do so."""
        return build(ctx)

    return own


def copying(spend_us: float = 10.0, parts: Any = (), **fields: Any) -> Case:
    """Return a case that copies 64 numbers and takes ``spend_us``, with other ``parts``."""

    def build(ctx: Any) -> Workload:
        def fn(x: list[float], y: list[float]) -> None:
            ctx.spend(spend_us)
            y[:] = x

        good: dict[str, Any] = {
            "fn": fn,
            "wrong": lambda x, y: y.__setitem__(slice(0, 63), x[:-1]),
            "reference": lambda x, y: x,
            "make_inputs": lambda rng: (rng.randn(64), rng.empty(64)),
            "exact": lambda: {"launches": 3},
        }
        return Workload(**{**good, **dict(parts)})

    return made(build, metrics=[Metric("launches")], **fields)


class Scripted(FakeDevice):
    """The fake device with other attributes; ``change`` makes samples of samples and their place.

    ``bad`` of its next readings tell of a slowdown.
    """

    change: Callable[[int, Sample], Sample] = staticmethod(lambda index, sample: sample)
    most = 100
    bad = taken = 0

    def __init__(self, **fields: Any) -> None:
        super().__init__(seed=1)
        vars(self).update(fields)

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        samples = super().sample(group, count, **conditions)
        self.taken += count
        first = self.taken - count
        return [self.change(first + i, s) for i, s in enumerate(samples)][: self.most]

    def health(self) -> Health:
        self.bad -= 1
        return Health(reasons=("hw_slowdown",)) if self.bad >= 0 else super().health()


def session_of(chosen: Case, device: FakeDevice | None = None, **settings: Any) -> Session:
    return Session(device or FakeDevice(seed=1), chosen, {"n": 64}, Settings(**settings), 7)


def measured(chosen: Case, device: FakeDevice | None = None, *, blocks: int = 1) -> Evidence:
    session = session_of(chosen, device)
    session.prepare()
    for _ in range(blocks):
        session.block()
    return session.finish()


def test_a_check_is_not_calibrated() -> None:
    session = session_of(copying(10.0), check_only=True)
    session.prepare()
    assert (session.plan, session.finish().exact["launches"]) == (None, 3.0)


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
    evidence = measured(copying(10.0, **fields), Scripted(cache_bytes=cache_bytes))
    assert (evidence.pace, evidence.sets) == (pace, sets)
    assert (evidence.backend == "host") == (fields.get("regime") is AWAITED)


@pytest.mark.parametrize(("spend_us", "times", "beside"), [(20.0, 16, 5), (30e3, 1, 1)])
def test_awaited_launches_have_the_devices_own_time_beside(
    spend_us: float, times: int, beside: int
) -> None:
    for block in measured(copying(spend_us, regime=AWAITED), blocks=2).blocks:
        assert (len(block.time_us), len(block.metrics["device_us"])) == (times, beside)
        assert block.metrics["device_us"] == pytest.approx([spend_us] * beside, rel=0.05)


@pytest.mark.parametrize(("spend_us", "blocks"), [(20.0, 18), (9e3, 9), (4e5, 9)])
def test_blocks_that_the_host_times_are_short_and_many_but_take_no_longer(
    spend_us: float, blocks: int
) -> None:
    found = measured(copying(spend_us, regime=AWAITED), blocks=40).blocks
    assert len(found) == pytest.approx(blocks, abs=1)
    assert all(sum(block.time_us) <= max(20e3, 1.1 * spend_us) for block in found)


# Three caches hold 45 input sets of two lists of 64 numbers.
CACHE = 45 * 1024 // 3


@pytest.mark.parametrize(
    ("known", "spend_us", "fields", "why"),
    [
        (Sampling(45, 45), 453.0, {}, ""),
        (Sampling(2, 1), 443.0, {}, ""),
        (Sampling(90, 45), 1.0, {}, ""),
        (Sampling(46, 46), 10.0, {}, ""),
        (Sampling(45, 45), 22_000.0, {}, ""),
        (Sampling(45, 45), 23_000.0, {}, "a sample would take 1.0"),
        (Sampling(1, 1), 2e6, {}, ""),
        (Sampling(30, 30), 10.0, {}, ""),
        (Sampling(29, 29), 10.0, {}, "its inputs are cold in another way now"),
        (Sampling(45, 45), 10.0, {"cold": False}, "its inputs are cold in another way now"),
        (Sampling(45, 45), 10.0, {"parts": {"rotates": False}}, "its inputs are cold in another"),
    ],
)
def test_a_known_sampling_is_kept_unless_that_cannot_be(
    known: Sampling, spend_us: float, fields: dict[str, Any], why: str
) -> None:
    def session() -> Session:
        return session_of(copying(spend_us, **fields), Scripted(cache_bytes=CACHE), sample_us=600.0)

    own, kept = session(), session()
    chosen = own.prepare()
    assert chosen != known or spend_us == 2e6
    assert kept.prepare(known) == kept.finish().sampling == (chosen if why else known)
    assert kept.plan
    assert why or kept.plan.flush == (known.sets == 1)
    told = [note for note in kept.notes if note.startswith(f"not sampled as before ({known}): ")]
    assert [why in note for note in told] == ([True] if why else [])


def test_ranks_take_the_slowest_ones_launches() -> None:
    class Rank(FakeDevice):
        def agree(self, value: float) -> float:
            return max(value, 2 * value if value > 2 else value)

    assert measured(copying(20.0), Rank(seed=1)).launches < measured(copying(20.0)).launches


def lost(first: int, last: float, time_us: float = NAN) -> dict[str, Any]:
    """Let the samples of a block from the first to the last have another time."""
    return {"change": lambda i, s: Sample(time_us, time_us) if first <= i < last else s}


@pytest.mark.parametrize(
    ("changes", "voided", "said"),
    [
        (lost(0, 2), 2, ""),
        ({"bad": 1}, BLOCK, ""),
        ({"foreign_percent": 4.0}, 0, ""),  # the fake device bears five
        ({"foreign_percent": 30.0}, 0, "foreign load of 30 %"),
        ({"bad": 99}, 0, "hw_slowdown"),
        (lost(0, math.inf), 0, "32 samples voided .*they have no time"),
        (lost(0, math.inf, 0.0) | {"untimed": "missed an SM"}, 0, "missed an SM"),
        (lost(0, math.inf, math.inf), 0, "no time"),
    ],
)
def test_what_disturbs_voids_samples_or_blocks_and_lasting_the_variant(
    changes: dict[str, Any], voided: int, said: str
) -> None:
    device = Scripted()
    session = session_of(copying(10.0), device)
    session.prepare()
    vars(device).update(changes, taken=0)
    if said:
        with pytest.raises(DisturbedError, match=said):
            session.block()
        return
    session.block()
    (block,) = session.finish().blocks
    assert (block.voided, len(block.time_us)) == (voided, BLOCK - voided % BLOCK)


def test_first_launches_without_a_time_are_a_disturbance_and_one_is_none() -> None:
    measured(copying(10.0), Scripted(**lost(0, 1)))
    with pytest.raises(DisturbedError, match="no sample of the first launches"):
        measured(copying(10.0), Scripted(**lost(0, math.inf)))


def test_a_device_that_returns_too_few_samples_or_impossible_ones_is_refused() -> None:
    with pytest.raises(DeviceError, match="device 'acme' returned 5 samples"):
        measured(copying(10.0), Scripted(name="acme", most=5))
    with pytest.raises(DeviceError, match=r"no measurement is beyond 1e\+100"):
        measured(copying(1e200))


def hands_back_the_first() -> Callable[..., Any]:
    kept: list[list[float]] = []

    def fn(x: list[float], y: list[float]) -> list[float]:
        kept.append([*x])
        return kept[0]

    return fn


def writes_once() -> Callable[..., Any]:
    left = [True]

    def fn(x: list[float], y: list[float]) -> None:
        y[:] = x if left and left.pop() else y

    return fn


def inspected(*counts: float, regime: Regime = Regime.EXACT, name: str = "registers") -> Case:
    """Return an inspection: what it reads, what its reference is, and what its mistake."""
    told: list[Any] = [lambda count=count: {name: count} for count in counts]
    parts = dict(zip(("read", "reference", "wrong"), told, strict=False))
    return made(lambda ctx: Inspection(**parts), regime=regime, metrics=[Metric("registers")])


def served(later: Any = (1.0, 2.0), *, first: Any = (1.0, 2.0), wrong: float = 3.0) -> Case:
    """Return a scenario that serves ``first`` when it is checked, and ``later`` tokens then."""

    def build(ctx: Any) -> Scenario:
        left = [first]

        def play(seed: int) -> Any:
            found = left.pop() if left else later
            return found if found is None else ([*found], {"ttft_ms": 5.0})

        return Scenario(
            play=play, reference=lambda seed: [1.0, 2.0], wrong=lambda seed: [1.0, wrong]
        )

    return made(build, regime=AWAITED, metrics=[Metric("ttft_ms", "ms")])


def copied(fn: Callable[..., Any], **parts: Any) -> Case:
    return copying(parts={"fn": fn, **parts})


@pytest.mark.parametrize(
    ("chosen", "error", "said"),
    [
        (made(lambda ctx: None), CaseError, "None, no Workload"),
        (copied(sum, make_inputs=lambda rng: 1), CaseError, r"<lambda>\(\) must return a tuple"),
        (copied(lambda x, y: [1.001 * v for v in x]), WrongResultError, "relative error"),
        (copied(lambda x, y: x[:-1]), WrongResultError, r"shape \(63,\) not \(64,\)"),
        (copied(hands_back_the_first()), WrongResultError, "relative error"),
        (copied(writes_once()), WrongResultError, "NaN"),
        (copying(parts={"wrong": lambda x, y: x}), CaseError, "accepts the negative control"),
        (inspected(41, 40, 39), WrongResultError, "registers is 41 instead of 40"),
        (inspected(40, 40, 40), CaseError, "accepts the negative control"),
        (inspected(1, name="spills"), CaseError, "'spills' that the case does not declare"),
        (inspected(NAN), CaseError, "no number that can be stored"),
        (inspected(40, regime=Regime.PACED), CaseError, "regime=Regime.EXACT"),
        (served(first=(1.0, 9.0)), WrongResultError, "served differs"),
        (served(later=(1.0, 9.0)), WrongResultError, "served differs"),
        (served(wrong=2.0), CaseError, "accepts the negative control"),
        (served(first=None), CaseError, "not its output and a mapping"),
    ],
)
def test_what_cannot_be_right_is_refused(chosen: Case, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        measured(chosen)


def test_a_further_process_has_the_same_result_to_the_bit_or_compares_it() -> None:
    def session(fn: Callable[..., Any], *, seed: int = 7) -> tuple[Session, list[str]]:
        calls: list[str] = []

        def noted(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given: [calls.append(name), act(*given)][1]  # type: ignore[func-returns-value]

        parts = {"wrong": lambda x, y: x[:-1], "reference": lambda x, y: x, "fn": fn}
        found = session_of(copying(parts={name: noted(name, act) for name, act in parts.items()}))
        found.seed, found.check_seed = seed, 3
        return found, calls

    first, calls = session(lambda x, y: x)
    first.check()
    # One of the launches is for the peak of memory.
    assert [calls.count(name) for name in ("fn", "reference", "wrong")] == [3, 2, 1]
    off = 1 + 1e-9  # inside the tolerance
    for fn, known, references, error in (
        (lambda x, y: x, first.checked, 0, 0.0),
        (lambda x, y: [off * v for v in x], first.checked, 1, pytest.approx(1e-9, rel=0.01)),
        (lambda x, y: x, None, 1, 0.0),
        (lambda x, y: x, Checked(), 1, 0.0),
    ):
        other, calls = session(fn, seed=8)
        other.check(is_thorough=False)
        other.match(known)
        assert [calls.count(name) for name in ("reference", "wrong")] == [references, 0]
        assert (other.checked.known_error, other.checked.limit) == (error, first.checked.limit)
    for bad in (lambda x, y: x[:-1], lambda x, y: y, lambda x, y: [1.001 * v for v in x]):
        other, _ = session(bad, seed=8)
        other.check(is_thorough=False)
        with pytest.raises(WrongResultError):
            other.match(first.checked)
    # What cannot be read to the end has no mark, and is like nothing.
    odd, _ = session(lambda x, y: x)
    odd.device.digest = lambda *_: (1, None)  # type: ignore[method-assign]
    odd.check()
    assert odd.checked.mark == ""


def test_what_does_not_settle_is_noted_and_streams_left_running_are_refused() -> None:
    wandering = Scripted(change=lambda index, s: Sample(s.time_us * 1.2**index, s.cycles))
    session = session_of(copying(10.0), wandering, settle_s=0.01)
    session.prepare()
    evidence = session.finish()
    assert (evidence.settled, "did not settle" in evidence.notes[0]) == (False, True)
    with pytest.raises(CaseError, match="streams have joined"):
        measured(copying(10.0), Scripted(joins_streams=lambda group: False))


@pytest.mark.parametrize(
    ("levels", "steady"),
    [
        ([2.0, 1.0, 1.001, 1.0], True),
        ([2.0, 1.0, 1.001], False),
        ([1.0, 1.0], False),
        ([1.0 + 0.01 * index for index in range(SCATTERING)], False),
        ([1.0 + 0.01 * (index % 2) for index in range(SCATTERING)], True),
        ([1.0, NAN, 1.1] * SCATTERING, False),
    ],
)
def test_groups_that_agree_or_scatter_without_a_drift_are_steady(
    levels: list[float], steady: object
) -> None:
    assert is_steady(levels, 0.002) is steady


@pytest.mark.parametrize(
    ("level", "noise", "samples", "least", "most"),
    [
        (lambda index: 1.0, 0.1, 1, SCATTERING, 3 * SCATTERING),
        (lambda index: math.exp(-0.01 * index), 0.02, 4, 280, 280),
        (lambda index: 1.1 if index < SCATTERING - 4 else 1.0, 0.01, 4, SCATTERING + 2, 280),
        # What is left of a warm-up of 10 % is less than the error of such a block.
        (lambda index: 1 + 0.1 * math.exp(-index / 5), 0.03, 4, 13, 280),
    ],
)
def test_noise_settles_soon_and_a_drift_does_not(
    level: Callable[[int], float], noise: float, samples: int, least: int, most: int
) -> None:
    for seed in range(10):
        draw = random.Random(seed)  # noqa: S311 - noise, not secrets
        levels: list[float] = []
        while len(levels) < 280 and not is_steady(levels, 0.0):
            drawn = [level(len(levels)) * (1 + draw.gauss(0, noise)) for _ in range(samples)]
            levels.append(statistics.median(drawn))
        assert least <= len(levels) <= most


def test_what_a_health_field_says_of_a_metric_is_its_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("time_us", "sm_clock_mhz", "power_w", "temperature_c")
    monkeypatch.setattr("perfsuite.model.OWN_METRICS", names)

    class Cold(Scripted):
        def health(self) -> Health:
            return Health(sm_clock_mhz=1500.0, power_w=NAN, temperature_c=-3.0)

    evidence = measured(copying(10.0), Cold(), blocks=2)
    assert evidence.samples("sm_clock_mhz") == [[1500.0], [1500.0]]
    (served_block,) = measured(served(), Cold()).blocks
    assert served_block.metrics == {"sm_clock_mhz": (1500.0,), "ttft_ms": (5.0,)}
    assert {name for block in evidence.blocks for name in block.metrics} == {"sm_clock_mhz"}


@pytest.mark.parametrize(
    ("longest_us", "most_us", "blocks"), [(0.0, 1e9, 3), (0.0, -1.0, 1), (60e6, 2e6, 1)]
)
def test_long_plays_take_no_further_block(
    longest_us: float, most_us: float, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "PLAYS_US", most_us)
    another = Scripted(agree=lambda value: max(value, longest_us))  # the slowest rank's plays
    assert len(measured(served(), another, blocks=3).blocks) == blocks


class Capped(FakeDevice):
    """Loses 20 % of its clock over the first half second of work and stays there."""

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        samples = super().sample(group, count, **conditions)
        left = 1 - 0.2 * min(1.0, self.now_us / 5e5)
        return [Sample(s.time_us / left, s.cycles) for s in samples]


def test_a_sustained_variant_is_sampled_hot_and_its_energy_read_once() -> None:
    device = Capped(seed=1)
    session = session_of(copying(500.0, regime=SUSTAINED), device)
    session.prepare()
    before_us = device.now_us
    assert before_us > 5e5
    session.block()
    # Launches that are not sampled come before those that are.
    assert device.now_us - before_us >= 0.8 * 2e5 + 500.0 * BLOCK
    session.block()
    evidence = session.finish()
    assert sum(evidence.blocks[0].cycles) / sum(evidence.blocks[0].time_us) == pytest.approx(
        1600, rel=0.01
    )
    (joules,), rest = evidence.samples("energy_j")
    assert joules == pytest.approx(100.0 * 500e-6 / 0.8, rel=0.02)
    assert not rest
    assert (evidence.pace, measured(copying(500.0)).samples("energy_j")) == (0, [[]])
