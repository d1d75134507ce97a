"""The mini server: who is served when, what the metrics mean, and that no token depends on it."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Any

import pytest
from perfsuite_inference import batching
from perfsuite_inference.batching_ticks import tick_through
from perfsuite_inference.scheduler import (
    PLANS,
    Demand,
    Lengths,
    Request,
    Rules,
    Seat,
    Virtual,
    draw_prompts,
    draw_trace,
    quantile,
    serve,
    summarise,
)

RULES = Rules(
    slots=2, timeout_us=100, budget=6, fixed_us=10, token_us=1, tick_us=1, ttft_us=300, tpot_us=30
)
SMALL = Demand(25, 2_000, Lengths(8, 1, 30), Lengths(6, 1, 40))
# Two slots, three requests that are there from the start.
THREE = (Request(0, 0, 5, 3), Request(1, 0, 5, 1), Request(2, 0, 10, 2))
LATE = (Request(0, 1000, 5, 1), Request(1, 1005, 5, 2))


@pytest.mark.parametrize(
    ("impl", "trace", "stamps"),
    [
        # Prompts 10 + 10; rows of two, one of them idle: 12 each. The third waits for 100 us.
        ("static", THREE, [[20, 32, 44], [20], [120, 131]]),
        # It does not wait once the batch is full.
        ("static", (*THREE, Request(3, 60, 1, 1)), [[20, 32, 44], [20], [81, 93], [81]]),
        # A slot is given away at the step after its last token.
        ("continuous", THREE, [[20, 52, 63], [20], [40, 52]]),
        # Six tokens a step: 5 and 1; then 1 decoded and 4; then 1 and 5; then 5; then 1 decoded.
        ("chunked", THREE, [[16, 31, 47], [31], [62, 73]]),
        # Nobody is served before they arrive.
        ("continuous", LATE, [[1015], [1030, 1041]]),
    ],
)
def test_each_policy_serves_by_its_rules(
    impl: str, trace: tuple[Request, ...], stamps: list[list[int]]
) -> None:
    served = serve(trace, PLANS[impl], Virtual(RULES), RULES)
    assert [seat.tokens_us for seat in served] == stamps


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("impl", PLANS)
@pytest.mark.parametrize("slots", [1, 3, 5])
def test_the_scheduler_agrees_with_the_simulation_by_ticks(
    impl: str, slots: int, seed: int
) -> None:
    trace, rules = draw_trace(SMALL, seed), replace(RULES, slots=slots)
    found = summarise(serve(trace, PLANS[impl], Virtual(rules), rules), rules)
    expected = tick_through(trace, impl, rules)
    assert {name: found[name] for name in expected} == expected


def test_chunks_bound_the_gap_between_tokens() -> None:
    gaps = {
        impl: batching.batching_model.build(None, rate=8, impl=impl).read()["itl_ms_p99"]  # type: ignore[union-attr]
        for impl in ("continuous", "chunked")
    }
    # 18 ms, and 0.1 ms for each of the budget's 192 tokens, read or decoded.
    assert gaps["chunked"] <= 18 + 19.2 < gaps["continuous"]


def test_times_to_tokens_are_what_they_are_called() -> None:
    served = [
        Seat(Request(0, 1000, 4, 3), 0, 1500, 4, [3000, 4000, 8000]),
        Seat(Request(1, 2000, 4, 1), 0, 2500, 4, [4000]),
    ]
    limits = replace(RULES, ttft_us=2000, tpot_us=2500)
    assert summarise(served, limits) == {
        "ttft_ms_p50": 2.0, "ttft_ms_p99": 2.0, "tpot_ms_p50": 2.5, "tpot_ms_p99": 2.5,
        "itl_ms_p50": 1.0, "itl_ms_p99": 4.0, "goodput_rps": 250.0, "tokens_per_s": 500.0,
        "makespan_ms": 8.0, "tokens": 4.0,
    }  # fmt: skip
    # A limit includes itself; a request of a single token keeps the second one.
    for below, good in ({"ttft_us": 1999}, 0), ({"tpot_us": 2499}, 1):
        assert summarise(served, replace(limits, **below))["goodput_rps"] == good * 125


def test_a_quantile_is_the_nearest_rank() -> None:
    values = [Fraction(value) for value in (15, 20, 35, 40, 50)]
    ranks = {1: 15, 5: 15, 20: 15, 21: 20, 50: 35, 99: 50, 100: 50}
    assert {percent: quantile(values, percent) for percent in ranks} == ranks


def test_a_trace_is_the_same_in_every_process() -> None:
    # What was drawn once: other numbers would be another case, and need a new version of it.
    assert draw_trace(SMALL, 1)[:2] == (Request(0, 4, 10, 4), Request(1, 50, 1, 2))
    built: Any = batching.batching_model.build(None, rate=4, impl="continuous")
    assert built.read()["makespan_ms"] == 45892.2


REAL = draw_trace(Demand(9, 500, Lengths(5, 1, 12), Lengths(6, 1, 20)), 2)
PROMPTS = draw_prompts(REAL, 97, 5)


@pytest.fixture(scope="module")
def desk() -> Any:
    pytest.importorskip("torch")
    from perfsuite_inference.engine import Desk
    from perfsuite_inference.model import Llama, Shape

    shape = Shape(2, 64, 4, 2, 16, 96, 97, dtype="fp64", positions=64)
    return Desk(Llama(shape, "cpu"), slots=3, most_prompt=12, length=32)


def test_tokens_do_not_depend_on_the_scheduler(desk: Any) -> None:
    from perfsuite_inference.engine import ModelBackend

    def played(impl: str, *, resets: bool = True) -> list[int]:
        backend = ModelBackend(desk, PROMPTS, resets=resets)
        served = serve(REAL, PLANS[impl], backend, replace(RULES, slots=3, timeout_us=1_000))
        assert [len(seat.tokens_us) for seat in served] == [len(each) for each in backend.outputs]
        return [*chain(*backend.outputs)]

    expected = batching.decode_alone(desk, REAL, PROMPTS).tolist()
    assert played("static") == expected
    assert played("continuous") == expected
    assert played("continuous", resets=False) != expected


def test_a_request_alone_gets_the_tokens_of_the_whole_sequence_read_at_once(desk: Any) -> None:
    import torch
    from perfsuite_inference.reference import logits_last

    tokens = iter(batching.decode_alone(desk, REAL, PROMPTS).tolist())
    for request, prompt in zip(REAL, PROMPTS, strict=True):
        sequence = list(prompt)
        for _ in range(request.output_tokens):
            logits = logits_last(desk._model, [torch.tensor(sequence)])  # noqa: SLF001 - a test
            sequence.append(int(logits.argmax()))
            assert sequence[-1] == next(tokens)
