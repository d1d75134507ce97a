"""The engine with what is inspected or played, and with metrics besides the clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from perfsuite import Inspection, Metric, Regime, Scenario, Workload, case
from perfsuite.boundary import CaseError, WrongResultError
from perfsuite.devices.fake import FakeDevice
from perfsuite.engine import measure as playing
from perfsuite.engine.measure import Quads, Session
from perfsuite.model import Case, Evidence, Settings

REGISTERS = Metric("registers", "registers")


def inspected(
    read: Mapping[str, float],
    reference: Mapping[str, float] | None = None,
    wrong: Mapping[str, float] | None = None,
    **fields: Any,
) -> Case:
    given = {"regime": Regime.EXACT, "metrics": [REGISTERS], **fields}

    @case(axes={"n": [1]}, source="made up", **given)
    def inspect(ctx: Any, n: int) -> Inspection:
        """Count."""
        return Inspection(
            read=lambda: read,
            reference=None if reference is None else lambda: reference,
            wrong=None if wrong is None else lambda: wrong,
        )

    return inspect


def measured(
    chosen: Case, device: FakeDevice | None = None, *, turns: int = 1, is_paired: bool = False
) -> Evidence:
    session = Session(device or FakeDevice(seed=1), chosen, {"n": 1}, Settings(), 7)
    session.prepare(lambda phase: None)
    for _ in range(turns):
        session.block(is_paired=is_paired)
    return session.finish()


def test_an_inspection_is_counted_and_not_timed() -> None:
    evidence = measured(inspected({"registers": 40}))
    assert (evidence.exact, evidence.blocks) == ({"registers": 40.0}, ())


def test_an_inspection_that_differs_from_its_reference_is_wrong() -> None:
    with pytest.raises(WrongResultError, match="registers is 41 instead of 40"):
        measured(inspected({"registers": 41}, {"registers": 40}, {"registers": 39}))


def test_an_inspection_whose_control_passes_is_refused() -> None:
    with pytest.raises(CaseError, match="accepts the negative control"):
        measured(inspected({"registers": 40}, {"registers": 40}, {"registers": 40}))


def test_a_metric_must_be_declared() -> None:
    with pytest.raises(CaseError, match="'spills' that the case does not declare"):
        measured(inspected({"spills": 1}))


def test_a_metric_must_be_a_number() -> None:
    with pytest.raises(CaseError, match="no number that can be stored"):
        measured(inspected({"registers": float("nan")}))


def test_an_inspection_needs_its_regime() -> None:
    with pytest.raises(CaseError, match=r"needs regime=Regime\.EXACT"):
        measured(inspected({"registers": 40}, regime=Regime.PACED))


def played(play: Callable[[int], tuple[list[float], dict[str, float]]], wrong: list[float]) -> Case:
    @case(
        axes={"n": [1]},
        source="made up",
        regime=Regime.END_TO_END,
        metrics=[Metric("ttft_ms", "ms")],
    )
    def serve(ctx: Any, n: int) -> Scenario:
        """Serve."""
        return Scenario(play=play, reference=lambda seed: [1.0, 2.0], wrong=lambda seed: wrong)

    return serve


def test_a_scenario_has_times_and_its_own_metrics() -> None:
    evidence = measured(played(lambda seed: ([1.0, 2.0], {"ttft_ms": 5.0}), [1.0, 3.0]))
    (block,) = evidence.blocks
    assert block.metrics == {"ttft_ms": (5.0,)}
    assert [time_us > 0 for time_us in block.time_us] == [True]
    assert evidence.error == 0.0


def test_a_scenario_that_serves_other_tokens_is_wrong() -> None:
    with pytest.raises(WrongResultError, match="served differs"):
        measured(played(lambda seed: ([1.0, 9.0], {"ttft_ms": 5.0}), [1.0, 3.0]))


def test_a_scenario_whose_control_passes_is_refused() -> None:
    with pytest.raises(CaseError, match="accepts the negative control"):
        measured(played(lambda seed: ([1.0, 2.0], {"ttft_ms": 5.0}), [1.0, 2.0]))


def launched(spend_us: float = 20.0, **fields: Any) -> Case:
    @case(axes={"n": [1]}, source="made up", metrics=[Metric("launches")], **fields)
    def run(ctx: Any, n: int) -> Workload:
        """Copy."""

        def fn(x: list[float], y: list[float]) -> None:
            ctx.spend(spend_us)
            y[:] = x

        return Workload(
            fn=fn,
            wrong=lambda x, y: None,
            reference=lambda x, y: x,
            make_inputs=lambda rng: (rng.randn(8), rng.empty(8)),
            exact=lambda: {"launches": 3},
        )

    return run


def test_awaited_launches_have_the_devices_own_time_beside() -> None:
    (block,) = measured(launched(regime=Regime.END_TO_END)).blocks
    assert len(block.metrics["device_us"]) == 5
    assert all(19.0 < time_us < 21.0 for time_us in block.metrics["device_us"])


def test_long_awaited_launches_have_fewer_times_beside() -> None:
    blocks = measured(launched(30e3, regime=Regime.END_TO_END), turns=2).blocks
    assert [len(block.metrics["device_us"]) for block in blocks] == [3, 3]
    assert [len(block.time_us) for block in blocks] == [5, 5]


def test_paced_launches_have_no_second_device_time() -> None:
    evidence = measured(launched())
    assert all(not block.metrics for block in evidence.blocks)
    assert evidence.exact["launches"] == 3.0


class Gang(FakeDevice):
    """A rank whose peers need twice as long."""

    def agree(self, value: float) -> float:
        return max(value, 2 * value if value > 2 else value)


def test_ranks_take_the_slowest_ones_launches() -> None:
    assert measured(launched(), Gang(seed=1)).launches < measured(launched()).launches


def test_a_scenario_that_is_wrong_later_is_wrong() -> None:
    plays: list[int] = []

    def play(seed: int) -> tuple[list[float], dict[str, float]]:
        plays.append(seed)
        return [1.0, 2.0 if len(plays) < 2 else 9.0], {"ttft_ms": 5.0}

    with pytest.raises(WrongResultError, match="served differs"):
        measured(played(play, [1.0, 3.0]))


def test_a_play_without_metrics_is_told_what_to_return() -> None:
    with pytest.raises(CaseError, match="not its output and a mapping"):
        measured(played(lambda seed: [1.0, 2.0], [1.0, 3.0]))  # type: ignore[arg-type, return-value]


def serve_well(seed: int) -> tuple[list[float], dict[str, float]]:
    return [1.0, 2.0], {"ttft_ms": 5.0}


def test_short_plays_take_every_turn() -> None:
    assert len(measured(played(serve_well, [1.0, 3.0]), turns=3).blocks) == 3


@pytest.mark.parametrize(("most_us", "blocks"), [(-1.0, 1), (1e9, 3)])
def test_long_plays_let_turns_pass(
    most_us: float, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "PLAYS_US", most_us)
    chosen = played(serve_well, [1.0, 3.0])
    assert len(measured(chosen, turns=3).blocks) == blocks
    assert len(measured(chosen, turns=3, is_paired=True).blocks) == 3


class LongElsewhere(FakeDevice):
    """A rank whose peer plays for a minute."""

    def agree(self, value: float) -> float:
        return max(value, 60e6)


def test_ranks_let_turns_pass_together() -> None:
    evidence = measured(played(serve_well, [1.0, 3.0]), LongElsewhere(seed=1), turns=3)
    assert len(evidence.blocks) == 1


def test_both_sides_of_a_quad_are_played_whatever_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(playing, "PLAYS_US", -1.0)
    chosen = played(serve_well, [1.0, 3.0])
    own, rival = (
        Session(FakeDevice(seed=1), chosen, {"n": 1}, Settings(), seed) for seed in (7, 8)
    )
    quads = Quads(own, rival, sampling=None, seed=7)
    quads.prepare(lambda phase: None)
    for _ in range(3):
        quads.block()
    assert [len(side.blocks) for side in quads.finish()] == [6, 6]
