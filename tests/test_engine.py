"""The engine's phases on the fake device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfsuite import Regime, Work, Workload, case
from perfsuite.boundary import CaseError, DeviceError, DisturbedError, WrongResultError
from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Group, Sample
from perfsuite.engine.measure import Session
from perfsuite.model import Case, Health, Sampling, Settings


def copying(spend_us: float, **fields: Any) -> Case:
    """Return a case that copies n numbers and says it takes ``spend_us``."""

    @case(axes={"n": [64]}, source="made up", **fields)
    def copy(ctx: Any, n: int) -> Workload:
        """Copy."""

        def fn(x: list[float], y: list[float]) -> None:
            ctx.spend(spend_us)
            y[:] = x

        def wrong(x: list[float], y: list[float]) -> None:
            y[:-1] = x[:-1]

        return Workload(
            fn=fn,
            wrong=wrong,
            reference=lambda x, y: x,
            make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        )

    return copy


def session_of(chosen: Case, device: FakeDevice | None = None, **settings: Any) -> Session:
    return Session(device or FakeDevice(seed=1), chosen, {"n": 64}, Settings(**settings), 7)


def prepared(chosen: Case, device: FakeDevice | None = None) -> Session:
    session = session_of(chosen, device)
    session.prepare(lambda phase: None)
    return session


def test_phases_are_announced_in_order() -> None:
    announced: list[str] = []
    session_of(copying(10.0)).prepare(announced.append)
    assert announced == ["build", "check", "calibrate", "settle"]


def test_check_only_stops_after_the_check() -> None:
    announced: list[str] = []
    session = session_of(copying(10.0), check_only=True)
    session.prepare(announced.append)
    assert announced == ["build", "check"]
    assert session.finish().blocks == ()


def test_samples_are_per_launch_and_last_long_enough() -> None:
    session = prepared(copying(10.0))
    session.block()
    (block,) = session.finish().blocks
    evidence = session.finish()
    assert evidence.launches * 10.0 >= Settings().sample_us
    assert all(9.5 < time_us < 10.5 for time_us in block.time_us)
    assert all(19_000 < cycles < 21_000 for cycles in block.cycles)


def test_a_long_launch_is_sampled_alone() -> None:
    session = prepared(copying(5_000.0))
    session.block()
    assert session.finish().launches == 1


def test_compute_heavy_work_is_paced_longer() -> None:
    heavy = copying(10.0, work=lambda n: Work(read_bytes=n, flops=1000 * n))
    light = copying(10.0, work=lambda n: Work(read_bytes=n))
    assert prepared(heavy).finish().pace > prepared(light).finish().pace > 0


def test_end_to_end_awaits_each_launch_and_does_not_spin() -> None:
    evidence = prepared(copying(10.0, regime=Regime.END_TO_END)).finish()
    assert (evidence.backend, evidence.pace) == ("host", 0.0)


def test_cold_inputs_rotate_through_three_caches() -> None:
    device = FakeDevice(seed=1)
    device.cache_bytes = 8 * 64 * 2 * 4  # four input sets of two lists
    assert prepared(copying(10.0), device).finish().sets == 12


def test_hot_inputs_do_not_rotate() -> None:
    device = FakeDevice(seed=1)
    device.cache_bytes = 1 << 20
    assert prepared(copying(10.0, cold=False), device).finish().sets == 1


def test_a_wrong_builder_is_named() -> None:
    @case(axes={"n": [64]}, source="made up")
    def broken(ctx: Any, n: int) -> Workload:
        """Return no workload."""
        return None  # type: ignore[return-value]

    with pytest.raises(CaseError, match="None, no Workload"):
        session_of(broken).prepare(lambda phase: None)


def test_block_before_prepare_is_refused() -> None:
    with pytest.raises(CaseError, match="before prepare"):
        session_of(copying(10.0)).block()


class Losing(FakeDevice):
    """Loses ``lost`` stamps of each block once it is prepared."""

    lost = 0

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        samples = super().sample(group, count, **conditions)
        return ([Sample(float("nan"))] * self.lost + samples[self.lost :])[:count]


def test_lost_stamps_are_voided_and_counted() -> None:
    device = Losing(seed=1)
    session = prepared(copying(10.0), device)
    device.lost = 2
    session.block()
    (block,) = session.finish().blocks
    assert (block.voided, len(block.time_us)) == (2, Settings().samples - 2)


@pytest.mark.parametrize("why", ["they have no time", "missed an SM"])
def test_too_many_lost_stamps_are_a_disturbance(why: str) -> None:
    device = Losing(seed=1)
    session = prepared(copying(10.0), device)
    device.lost = Settings().samples
    device.untimed = why
    with pytest.raises(DisturbedError, match=why):
        session.block()


@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_a_device_that_returns_too_few_samples_is_refused(most: int) -> None:
    class Short(FakeDevice):
        name = "acme"

        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            return super().sample(group, count, **conditions)[:most]

    with pytest.raises(DeviceError, match=r"device 'acme' returned [2-5] samples") as told:
        prepared(copying(10.0), Short(seed=1)).block()
    assert f"returned {most} samples" in str(told.value)
    assert "Short.sample" in told.value.where
    assert "NaN" in told.value.remedy


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("inf"), float("nan")])
def test_times_that_nothing_takes_are_no_samples(time_us: float) -> None:
    class Untrue(Losing):
        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            samples = super().sample(group, count, **conditions)
            return [Sample(time_us, time_us)] * count if self.lost else samples

    device = Untrue(seed=1)
    session = prepared(copying(10.0), device)
    device.lost = 1
    with pytest.raises(DisturbedError, match="samples voided"):
        session.block()


def test_first_launches_without_a_time_are_a_disturbance_and_one_is_none() -> None:
    device = Losing(seed=1)
    device.lost = 1
    prepared(copying(10.0), device)
    device.lost = 100
    with pytest.raises(DisturbedError, match="no sample of the first launches"):
        prepared(copying(10.0), device)


class Throttled(FakeDevice):
    """Reports a hardware slowdown in the first ``bad`` readings."""

    bad = 0

    def health(self) -> Health:
        self.bad -= 1
        return Health(reasons=("hw_slowdown",) if self.bad >= 0 else ())


def test_a_slowdown_voids_the_block_and_it_is_taken_again() -> None:
    device = Throttled(seed=1)
    session = prepared(copying(10.0), device)
    device.bad = 1
    session.block()
    (block,) = session.finish().blocks
    assert block.voided == Settings().samples
    assert len(block.time_us) == Settings().samples


def test_a_lasting_slowdown_is_a_disturbance() -> None:
    device = Throttled(seed=1)
    session = prepared(copying(10.0), device)
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


class Unjoined(FakeDevice):
    """Finds that a launch's streams have not joined."""

    def joins_streams(self, group: Group) -> bool:
        del group
        return False


def test_streams_left_running_are_an_error_of_the_case() -> None:
    with pytest.raises(CaseError, match="streams have joined"):
        prepared(copying(10.0), Unjoined(seed=1))


@pytest.mark.parametrize(("spend_us", "launches"), [(1.0, 32), (40.0, 13), (90.0, 6), (200.0, 1)])
def test_a_launch_is_estimated_in_groups_no_longer_than_a_sample(
    spend_us: float, launches: int
) -> None:
    made: list[int] = []

    class Counting(FakeDevice):
        def group(self, fn: Any, sets: Any, launches: int, *, backend: str) -> Any:
            made.append(launches)
            return super().group(fn, sets, launches, backend=backend)

    prepared(copying(spend_us), Counting(seed=1))
    *estimated, chosen = made
    assert max(estimated) == launches
    assert chosen == pytest.approx(500.0 / spend_us, rel=0.5)


class Wandering(FakeDevice):
    """Gets slower with each sample, so that nothing settles."""

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        self._process *= 1.2
        return super().sample(group, count, **conditions)


def test_what_does_not_settle_is_noted() -> None:
    session = session_of(copying(10.0), Wandering(seed=1), settle_s=0.01)
    session.prepare(lambda phase: None)
    evidence = session.finish()
    assert not evidence.settled
    assert "did not settle" in evidence.notes[0]


@pytest.mark.parametrize(("spend_us", "most"), [(10.0, 160), (30e3, 28)])
def test_launches_that_only_scatter_settle_soon(spend_us: float, most: int) -> None:
    taken: list[int] = []

    class Scattering(FakeDevice):
        within = 0.2

        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            taken.append(count)
            return super().sample(group, count, **conditions)

    session = session_of(copying(spend_us), Scattering(seed=1))
    session.prepare(lambda phase: None)
    assert session.finish().settled
    assert sum(taken) < most


@pytest.mark.parametrize("time_us", [float("nan"), 0.0])
def test_one_sample_in_eight_without_a_time_keeps_nothing_from_settling(time_us: float) -> None:
    class Scattering(FakeDevice):
        within = 0.2
        taken = 0

        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            samples = super().sample(group, count, **conditions)
            first, self.taken = self.taken, self.taken + count
            lost = [(first + index) % 8 == 7 for index in range(count)]
            return [Sample(time_us) if no else s for no, s in zip(lost, samples, strict=True)]

    device = Scattering(seed=1)
    session = session_of(copying(30e3), device)
    session.prepare(lambda phase: None)
    assert session.finish().settled
    assert device.taken < 30


def checked(*, is_thorough: bool = True, **parts: Callable[..., Any]) -> None:
    """Check a workload that doubles numbers, with some of its parts replaced."""

    @case(axes={"n": [64]}, source="made up")
    def double(ctx: Any, n: int) -> Workload:
        """Double."""
        good: dict[str, Any] = {
            "fn": lambda x: [2 * v for v in x],
            "wrong": lambda x: x,
            "reference": lambda x: [v + v for v in x],
            "make_inputs": lambda rng: (rng.randn(n),),
        }
        return Workload(**{**good, **parts})

    session_of(double, check_only=True).check(lambda phase: None, is_thorough=is_thorough)


def test_a_right_workload_passes_its_check() -> None:
    checked()


def test_a_wrong_output_is_refused() -> None:
    with pytest.raises(WrongResultError, match="relative error"):
        checked(fn=lambda x: [2.001 * v for v in x])


def test_nan_is_refused() -> None:
    with pytest.raises(WrongResultError, match="NaN"):
        checked(fn=lambda x: [float("nan")] * len(x))


def test_no_output_at_all_is_refused() -> None:
    with pytest.raises(WrongResultError, match="returned nothing"):
        checked(fn=lambda x: None)


def test_a_missing_element_is_refused() -> None:
    with pytest.raises(WrongResultError, match="63 values instead of 64"):
        checked(fn=lambda x: [2 * v for v in x[:-1]])


def test_a_stored_output_is_refused_on_fresh_data() -> None:
    kept: list[list[float]] = []

    def cached(x: list[float]) -> list[float]:
        kept.append([2 * v for v in x])
        return kept[0]

    with pytest.raises(WrongResultError):
        checked(fn=cached)


def test_a_reference_that_accepts_the_negative_control_is_an_error() -> None:
    with pytest.raises(CaseError, match="accepts the negative control"):
        checked(wrong=lambda x: [2 * v for v in x])


def test_a_further_process_checks_once_and_plants_no_mistake() -> None:
    calls: list[str] = []

    def counted(x: list[float]) -> list[float]:
        calls.append("fn")
        return [2 * v for v in x]

    def mistake(x: list[float]) -> list[float]:
        calls.append("wrong")
        return x

    checked(fn=counted, wrong=mistake)
    thorough, calls[:] = [*calls], []
    checked(is_thorough=False, fn=counted, wrong=mistake)
    assert (thorough.count("fn"), thorough.count("wrong")) == (calls.count("fn") + 1, 1)
    assert calls.count("wrong") == 0
    with pytest.raises(WrongResultError):
        checked(is_thorough=False, fn=lambda x: [2.001 * v for v in x])


def test_samples_as_the_process_before_did() -> None:
    chosen = copying(10.0)
    usual = prepared(chosen).sampling
    assert usual is not None
    other = Sampling(2 * usual.launches, usual.sets)
    session = session_of(chosen)
    session.prepare(lambda phase: None, other)
    assert session.sampling == other
    assert session.finish().sampling == other


@pytest.mark.parametrize("stretch", [9, 1 / 9])
def test_sampling_of_much_slower_or_faster_code_is_not_taken_over(stretch: float) -> None:
    chosen = copying(10.0)
    usual = prepared(chosen).sampling
    assert usual is not None
    session = session_of(chosen)
    session.prepare(lambda phase: None, Sampling(round(stretch * usual.launches), usual.sets))
    assert session.sampling == usual


def test_sampling_with_other_input_sets_is_not_taken_over() -> None:
    chosen = copying(10.0, work=lambda n, **_: Work(read_bytes=4 * n, write_bytes=4 * n))
    usual = prepared(chosen).sampling
    assert usual is not None
    session = session_of(chosen)
    session.prepare(lambda phase: None, Sampling(usual.launches, usual.sets + 1))
    assert session.sampling == usual
