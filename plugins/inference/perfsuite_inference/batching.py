"""Serving a trace of requests: batches that end as one, against slots refilled at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import perfsuite
from perfsuite import Claim, Inspection, Metric, Regime, Scenario, cuda, package
from perfsuite_inference.batching_ticks import Rules, tick_through
from perfsuite_inference.engine import CostModel, Costs, Desk, ModelBackend, RealClock, VirtualClock
from perfsuite_inference.scheduler import Chunked, Continuous, Policy, Served, Static, serve
from perfsuite_inference.service import INTERACTIVE, summarise
from perfsuite_inference.shapes import SHAPES
from perfsuite_inference.trace import Demand, Lengths, Request, draw_prompts, draw_trace

# Arrivals and lengths are the same in every run: another trace would be other work.
_TRACE_SEED = 1
_WEIGHT_SEED = 0

# The virtual server. Its costs define the case and were not measured: 18 ms to read the weights
# (of the order of 70e9 parameters on some GPUs), 0.1 ms a token read or a row decoded. A step of
# 64 rows then takes 24.4 ms, and one that spends the whole budget 37.2 ms, of the 40 ms allowed.
_TICK_US = 100
RULES = Rules(
    slots=64,
    timeout_us=100_000,
    budget=192,
    costs=Costs(prefill_us=18_000, token_us=100, decode_us=18_000, row_us=100),
    tick_us=_TICK_US,
)
_REQUESTS = 120
_PROMPTS = Lengths(256, 16, 2048)
_OUTPUTS = Lengths(128, 4, 1024)

# The real one: all requests come within 20 ms, a batch that is not full waits for 5 ms.
_WINDOW_US = 20_000
_TIMEOUT_US = 5_000
_DEMANDS = {
    "tiny": Demand(16, _WINDOW_US, Lengths(12, 4, 32), Lengths(16, 2, 48)),
    "1b": Demand(48, _WINDOW_US, Lengths(64, 8, 128), Lengths(24, 2, 128)),
}

_SERVICE = (
    Metric("ttft_ms_p50", "ms"),
    Metric("ttft_ms_p99", "ms"),
    Metric("tpot_ms_p50", "ms"),
    Metric("itl_ms_p99", "ms"),
    Metric("goodput_rps", "requests/s", "higher"),
)
_MODELLED = (
    *_SERVICE,
    Metric("tpot_ms_p99", "ms"),
    Metric("makespan_ms", "ms"),
    Metric("tokens", better="equal"),
)
_PLAYED = (*_SERVICE, Metric("tokens_per_s", "tokens/s", "higher"))


@perfsuite.case(
    axes={"rate": [4, 8], "impl": ["static", "continuous", "chunked"]},
    smoke={"rate": [4]},
    regime=Regime.EXACT,
    metrics=_MODELLED,
    tags=["batching", "scheduling", "service"],
    waits=lambda impl, **_: impl == "chunked",
    source="continuous: Yu et al., Orca, OSDI 2022; chunked: Agrawal et al., Sarathi-Serve, OSDI "
    "2024; limits: MLPerf Inference v5.0, Llama-2-70B interactive",
)
def batching_model(ctx: Any, rate: int, impl: str) -> Inspection:
    """Schedule a trace on a virtual clock, with steps that take what a cost model says.

    120 requests arrive at ``rate`` per second (Poisson), with log-normal lengths, at a server of
    64 slots. ``static`` waits for a full batch, or 100 ms, and runs it to its longest request's
    end. ``continuous`` refills slots at every step and reads whole prompts first. ``chunked`` reads
    prompts in pieces beside the decoded tokens. All times are whole microseconds, so every metric
    is exact on every machine. Quantiles are nearest ranks; goodput counts the requests with a first
    token within 450 ms and at most 40 ms a token. The reference is a second simulation, tick by
    tick; the control counts the wait for the first token from a request's admission.
    """
    demand = Demand(_REQUESTS, _REQUESTS * 1_000_000 // rate, _PROMPTS, _OUTPUTS, _TICK_US)
    trace = draw_trace(demand, _TRACE_SEED)

    def read() -> dict[str, float]:
        return modelled(serve_virtually(trace, policy_of(impl, RULES), RULES))

    def wrong() -> dict[str, float]:
        served = serve_virtually(trace, policy_of(impl, RULES), RULES)
        return modelled(
            [replace(s, request=replace(s.request, arrival_us=s.admitted_us)) for s in served]
        )

    return Inspection(
        read=read, reference=lambda: tick_through(trace, impl, RULES, INTERACTIVE), wrong=wrong
    )


def policy_of(impl: str, rules: Rules) -> Policy:
    """Return the policy of an implementation."""
    if impl == "static":
        return Static(rules.timeout_us)
    return Chunked(rules.budget) if impl == "chunked" else Continuous()


def serve_virtually(trace: Sequence[Request], policy: Policy, rules: Rules) -> tuple[Served, ...]:
    """Serve a trace on a virtual clock."""
    clock = VirtualClock()
    return serve(trace, policy, CostModel(rules.costs, clock), clock, slots=rules.slots)


def modelled(served: Sequence[Served]) -> dict[str, float]:
    """Return the metrics of ``batching_model``."""
    return _declared(served, _MODELLED)


def _declared(served: Sequence[Served], metrics: Sequence[Metric]) -> dict[str, float]:
    found = summarise(served)
    return {metric.name: found[metric.name] for metric in metrics}


def _memory_bytes(size: str, slots: int, impl: str) -> int:
    s = SHAPES[size]
    weights = s.item_bytes * (s.weights + s.hidden * s.vocab)
    logits = 4 * 2 * slots * s.vocab
    return weights + s.item_bytes * slots * _length_of(size) * s.kv_elements + logits + (1 << 28)


def _length_of(size: str) -> int:
    """Return the positions of a row, whole multiples of 64 of them."""
    demand = _DEMANDS[size]
    return -(-(demand.prompt.most + demand.output.most) // 64) * 64


@perfsuite.case(
    axes={"size": ["1b"], "slots": [16], "impl": ["static", "continuous"]},
    smoke={"size": ["tiny"], "slots": [4]},
    only=lambda size, slots, impl: (size == "tiny") == (slots == 4),  # noqa: PLR2004 - of smoke
    waits=lambda **_: True,
    needs=(package("torch"), cuda().when(size="1b")),
    memory_bytes=_memory_bytes,
    regime=Regime.END_TO_END,
    cold=False,
    metrics=_PLAYED,
    tags=["batching", "scheduling", "service"],
    source="Yu et al., Orca, OSDI 2022; limits: MLPerf Inference v5.0, Llama-2-70B interactive",
)
def batching(ctx: Any, size: str, slots: int, impl: str) -> Scenario:
    """Serve a trace with a Llama-shaped model in real time, from the first arrival to the end.

    All requests arrive within 20 ms (Poisson) and have log-normal lengths: 48 of them with up to
    128 tokens each way for ``1b``, 16 with up to 32 and 48 for ``tiny``. ``static`` and
    ``continuous`` are those of ``batching_model``; both read one prompt at a time and decode all
    slots by one CUDA graph each (by plain calls on a CPU), and both hand out every token at the
    end of its step. The time is that of the whole trace. Quantiles are nearest ranks.

    The output is every token of every request, and the reference decodes each request alone. A
    greedy token is a discontinuity: with random weights the two best logits are often closer than
    bf16 rounds. So the launches have the same shapes in both, whatever the slots hold, which makes
    each row equal to the bit; nothing that a scheduler decides may change a token. The control
    forgets that a slot's next request starts from its own position.
    """
    import torch

    from perfsuite_inference.model import Llama

    torch.backends.cuda.matmul.allow_tf32 = False
    demand = _DEMANDS[size]
    trace = draw_trace(demand, _TRACE_SEED)
    model = Llama(size, ctx.device, getattr(torch, SHAPES[size].dtype), _WEIGHT_SEED)
    desk = Desk(model, slots=slots, most_prompt=demand.prompt.most, length=_length_of(size))

    def run(seed: int, *, resets: bool = True) -> tuple[ModelBackend, tuple[Served, ...]]:
        prompts = draw_prompts(trace, SHAPES[size].vocab, seed)
        backend = ModelBackend(desk, prompts, resets=resets)
        policy = policy_of(impl, replace(RULES, timeout_us=_TIMEOUT_US))
        return backend, serve(trace, policy, backend, RealClock(), slots=slots)

    def play(seed: int) -> tuple[Any, dict[str, float]]:
        backend, served = run(seed)
        return _joined(backend), _declared(served, _PLAYED)

    return Scenario(
        play=play,
        reference=lambda seed: decode_alone(
            desk, trace, draw_prompts(trace, SHAPES[size].vocab, seed)
        ),
        wrong=lambda seed: _joined(run(seed, resets=False)[0]),
        tolerance=0.0,
    )


def _joined(backend: ModelBackend) -> Any:
    import torch

    return torch.tensor([token for output in backend.outputs for token in output])


def decode_alone(desk: Desk, trace: Sequence[Request], prompts: Sequence[Sequence[int]]) -> Any:
    """Return all tokens [sum of outputs] of requests served one after another, each by itself.

    No scheduler, no clock, no slot that was another's: the cache is empty before each request.
    """
    import torch

    uploaded = desk.upload(prompts)
    tokens = []
    for request in trace:
        desk.clear()
        desk.read(0, uploaded[request.index], request.prompt_tokens)
        desk.let_live([0])
        tokens.append(desk.tokens[:1].clone())
        for _ in range(request.output_tokens - 1):
            desk.decode()
            tokens.append(desk.tokens[:1].clone())
    return torch.cat(tokens).cpu()


_FIGURES = (
    "the repository that accompanies the book, pairs continuous_batching (folders ch04, ch15) on "
    "one B200, two B200 and four GB200: 2.65 to 4.42 times as fast as static batches; less is "
    "asked for, as a trace of 48 requests ends in a tail with empty slots and neither side reads "
    "prompts in batches"
)
CASES: tuple[perfsuite.Case | Claim, ...] = (
    batching_model,
    batching,
    Claim(
        name="batching_continuous",
        case="batching",
        faster={"impl": "continuous"},
        than={"impl": "static"},
        by=1.5,
        at={"size": ("1b",)},
        needs=(cuda(),),
        source=_FIGURES,
    ),
)
