"""The mini server: who is served when, what the metrics mean, and that no token depends on it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from perfsuite_inference import batching
from perfsuite_inference.batching_ticks import Rules, tick_through
from perfsuite_inference.scheduler import (
    INTERACTIVE,
    Chunked,
    Continuous,
    CostModel,
    Costs,
    Demand,
    Floor,
    Lengths,
    Limits,
    Piece,
    Policy,
    RealClock,
    Request,
    Served,
    Static,
    Step,
    draw_prompts,
    draw_trace,
    quantile,
    serve,
    summarise,
)

COSTS = Costs(prefill_us=10, token_us=1, decode_us=20, row_us=2)
RULES = Rules(slots=3, timeout_us=70, budget=7, costs=COSTS, tick_us=1)
IMPLS = ("static", "continuous", "chunked")
SMALL = Demand(25, 2_000, Lengths(8, 1, 30), Lengths(6, 1, 40))
# Two slots, three requests that are there from the start.
THREE = (Request(0, 0, 5, 3), Request(1, 0, 5, 1), Request(2, 0, 10, 2))
Trace = tuple[Request, ...]


def _serve(trace: Trace, policy: Policy, slots: int = 2) -> tuple[Served, ...]:
    return batching.serve_virtually(trace, policy, replace(RULES, slots=slots))


def _stamps(trace: Trace, policy: Policy) -> list[list[int]]:
    return [item.tokens_us for item in _serve(trace, policy)]


@dataclass
class Watched(CostModel):
    """Keeps what it was asked to run."""

    steps: list[Step] = field(default_factory=list)

    def run(self, step: Step) -> None:
        """Keep the step and let its time pass."""
        slots = [seat.slot for seat in (*(piece.seat for piece in step.prefill), *step.decode)]
        assert len(slots) == len(set(slots)), "a slot holds two requests"
        assert max(slots) < 3
        self.steps.append(step)
        super().run(step)


class LateRefill(Continuous):
    """Looks for free slots before it takes those of requests that are done: one step late."""

    def plan(self, floor: Floor) -> Step:
        """Return a step as ``Continuous`` does."""
        admitted = floor.admit()
        floor.dismiss()
        if not floor.seats:
            admitted = floor.admit()
        if admitted:
            return Step(tuple(Piece(seat, 0, seat.request.prompt_tokens) for seat in admitted))
        return Step(decode=tuple(floor.seats), rows=len(floor.seats))


def test_static_runs_a_batch_to_its_longest_and_then_waits_for_the_next() -> None:
    # Prompts 10 + 10; rows of two, one of them idle: 24 each. The third waits for 100 us.
    assert _stamps(THREE, Static(100)) == [[20, 44, 68], [20], [120, 142]]


def test_static_does_not_wait_once_the_batch_is_full() -> None:
    trace = (*THREE, Request(3, 70, 1, 1))
    assert _stamps(trace, Static(100))[2:] == [[91, 115], [91]]


def test_continuous_gives_a_slot_away_at_the_step_after_its_last_token() -> None:
    assert _stamps(THREE, Continuous()) == [[20, 64, 86], [20], [40, 64]]


def test_chunked_reads_prompts_beside_the_decoded_tokens() -> None:
    # Six tokens a step: 5 and 1; then 1 decoded and 4; then 1 and 5; then 5; then 1 decoded.
    assert _stamps(THREE, Chunked(6)) == [[16, 42, 69], [42], [84, 106]]


def test_nobody_is_served_before_they_arrive() -> None:
    trace = (Request(0, 1000, 5, 1), Request(1, 1005, 5, 2))
    assert _stamps(trace, Continuous()) == [[1015], [1030, 1052]]
    assert [item.admitted_us for item in _serve(trace, Continuous())] == [1000, 1015]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("impl", IMPLS)
def test_each_token_comes_once_in_order_of_arrival_within_the_slots(impl: str, seed: int) -> None:
    trace, backend = draw_trace(SMALL, seed), Watched(COSTS)
    served = serve(trace, batching.policy_of(impl, RULES), backend, backend, slots=3)
    for item in served:
        assert len(item.tokens_us) == item.request.output_tokens
        assert item.tokens_us == sorted(set(item.tokens_us))
        assert item.request.arrival_us <= item.admitted_us < item.tokens_us[0]
    admitted = [item.admitted_us for item in served]
    assert admitted == sorted(admitted)
    read = [0] * len(trace)
    for piece in itertools.chain(*(step.prefill for step in backend.steps)):
        assert piece.start == read[piece.seat.request.index]
        read[piece.seat.request.index] += piece.tokens
    assert read == [request.prompt_tokens for request in trace]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("slots", [1, 3, 6])
def test_the_scheduler_agrees_with_the_simulation_by_ticks(
    impl: str, slots: int, seed: int
) -> None:
    trace, rules = draw_trace(SMALL, seed), replace(RULES, slots=slots)
    limits = Limits(ttft_us=300, tpot_us=30)
    served = batching.serve_virtually(trace, batching.policy_of(impl, rules), rules)
    expected, found = tick_through(trace, impl, rules, limits), summarise(served, limits)
    assert {name: found[name] for name in expected} == expected


def test_the_simulation_by_ticks_refuses_a_slot_refilled_one_step_late() -> None:
    trace = draw_trace(SMALL, 1)
    late = batching.modelled(batching.serve_virtually(trace, LateRefill(), RULES))
    expected = tick_through(trace, "continuous", RULES, INTERACTIVE)
    assert late["tokens"] == expected["tokens"]
    assert late["makespan_ms"] > expected["makespan_ms"]


def test_the_simulation_by_ticks_refuses_costs_that_are_no_whole_ticks() -> None:
    with pytest.raises(ValueError, match="whole ticks"):
        tick_through(THREE, "continuous", replace(RULES, tick_us=4), INTERACTIVE)


@pytest.mark.parametrize("impl", IMPLS)
def test_the_model_s_control_changes_what_the_reference_holds(impl: str) -> None:
    inspection: Any = batching.batching_model.build(None, rate=4, impl=impl)
    expected = inspection.reference()
    assert set(expected) == {metric.name for metric in batching.batching_model.metrics}
    assert inspection.read() == expected
    assert inspection.wrong() != expected


def test_chunks_bound_the_gap_between_tokens() -> None:
    gaps = {
        impl: batching.batching_model.build(None, rate=8, impl=impl).read()["itl_ms_p99"]  # type: ignore[union-attr]
        for impl in ("continuous", "chunked")
    }
    # 18 ms, and 0.1 ms for each of the budget's 192 tokens, read or decoded.
    assert gaps["chunked"] <= 18 + 19.2 < gaps["continuous"]


def test_times_to_tokens_are_what_they_are_called() -> None:
    served = [
        Served(Request(0, 1000, 4, 3), 1500, [3000, 4000, 8000]),
        Served(Request(1, 2000, 4, 1), 2500, [4000]),
    ]
    found = summarise(served, Limits(ttft_us=2000, tpot_us=2500))
    assert found == {
        "ttft_ms_p50": 2.0, "ttft_ms_p99": 2.0, "tpot_ms_p50": 2.5, "tpot_ms_p99": 2.5,
        "itl_ms_p50": 1.0, "itl_ms_p99": 4.0, "goodput_rps": 250.0, "tokens_per_s": 500.0,
        "makespan_ms": 8.0, "tokens": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "good"), [(Limits(2000, 2500), 1), (Limits(1999, 2500), 0), (Limits(2000, 2499), 0)]
)
def test_a_limit_includes_itself(limits: Limits, good: int) -> None:
    assert limits.hold(Served(Request(0, 1000, 4, 3), 1000, [3000, 4000, 8000])) == good


def test_a_quantile_is_the_nearest_rank() -> None:
    values = [Fraction(value) for value in (15, 20, 35, 40, 50)]
    ranks = {1: 15, 5: 15, 20: 15, 21: 20, 50: 35, 99: 50, 100: 50}
    assert {percent: quantile(values, percent) for percent in ranks} == ranks
    assert quantile([], 50) == 0


@pytest.mark.parametrize("impl", IMPLS)
def test_an_empty_trace_and_one_request(impl: str) -> None:
    policy = batching.policy_of(impl, RULES)
    assert _serve((), policy) == ()
    assert set(summarise(()).values()) == {0.0}
    begin = 70 if impl == "static" else 0
    assert _stamps((Request(0, 0, 4, 2),), policy) == [[begin + 14, begin + 36]]


class Lazy(Continuous):
    """Waits for nothing."""

    def plan(self, floor: Floor) -> Step:
        """Return a step without work."""
        return Step(rows=len(floor.seats))


@pytest.mark.parametrize(
    ("policy", "slots", "message"),
    [
        (Continuous(), 0, "0 slots"),
        (Chunked(2), 2, "leaves none for prompts"),
        (Lazy(), 2, "no request is to come"),
    ],
)
def test_what_would_never_end_is_refused(policy: Policy, slots: int, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        _serve(THREE, policy, slots)


def test_a_trace_is_the_same_in_every_process() -> None:
    # What was drawn once: other numbers would be another case, and need a new version of it.
    assert draw_trace(SMALL, 1)[:2] == (Request(0, 4, 10, 4), Request(1, 50, 1, 2))
    built: Any = batching.batching_model.build(None, rate=4, impl="continuous")
    assert built.read()["makespan_ms"] == 45892.2


def test_prompts_follow_the_seed_and_the_lengths() -> None:
    prompts = draw_prompts(THREE, 50, seed=3)
    assert [len(prompt) for prompt in prompts] == [5, 5, 10]
    assert all(0 <= token < 50 for token in itertools.chain(*prompts))
    assert prompts == draw_prompts(THREE, 50, seed=3) != draw_prompts(THREE, 50, seed=4)


REAL = draw_trace(Demand(9, 500, Lengths(5, 1, 12), Lengths(6, 1, 20)), 2)
PROMPTS = draw_prompts(REAL, 97, 5)


@pytest.fixture(scope="module")
def desk() -> Any:
    pytest.importorskip("torch")
    from perfsuite_inference.engine import Desk
    from perfsuite_inference.model import Llama, Shape

    shape = Shape(2, 64, 4, 2, 16, 96, 97, dtype="fp64", positions=64)
    return Desk(Llama(shape, "cpu"), slots=3, most_prompt=12, length=32)


def _played(desk: Any, policy: Policy, *, resets: bool = True) -> list[int]:
    from perfsuite_inference.engine import ModelBackend

    backend = ModelBackend(desk, PROMPTS, resets=resets)
    served = serve(REAL, policy, backend, RealClock(), slots=3)
    assert [len(item.tokens_us) for item in served] == [len(each) for each in backend.outputs]
    return [*itertools.chain(*backend.outputs)]


def test_tokens_do_not_depend_on_the_scheduler(desk: Any) -> None:
    expected = batching.decode_alone(desk, REAL, PROMPTS).tolist()
    assert _played(desk, Static(1_000)) == expected
    assert _played(desk, Continuous()) == expected
    assert _played(desk, Continuous(), resets=False) != expected


def test_a_request_alone_gets_the_tokens_of_the_whole_sequence_read_at_once(desk: Any) -> None:
    import torch

    tokens = iter(batching.decode_alone(desk, REAL, PROMPTS).tolist())
    for request, prompt in zip(REAL, PROMPTS, strict=True):
        sequence = list(prompt)
        for _ in range(request.output_tokens):
            logits = desk._model.prefill(torch.tensor([sequence]), None)  # noqa: SLF001 - a test
            sequence.append(int(logits.argmax()))
            assert sequence[-1] == next(tokens)


def test_a_model_reads_prompts_whole(desk: Any) -> None:
    with pytest.raises(ValueError, match="reads prompts whole"):
        _played(desk, Chunked(4))


def test_the_scenario_s_metrics_are_those_it_declares() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    context = open_device("cpu").context(1)
    scenario: Any = batching.batching.build(context, size="tiny", slots=4, impl="continuous")
    output, metrics = scenario.play(0)
    assert set(metrics) == {metric.name for metric in batching.batching.metrics}
    assert output.shape == (260,)
