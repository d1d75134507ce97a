"""The model and its caches against the float64 reference, on the CPU."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from perfsuite_inference import reference
from perfsuite_inference.cache import ConcatCache, PagedCache, StaticCache
from perfsuite_inference.model import SHAPES, Llama

BATCH, PROMPT, STEPS = 3, 37, 4
TINY = SHAPES["tiny"]
PROMPTS = torch.randint(0, TINY.vocab, (BATCH, PROMPT), generator=torch.Generator().manual_seed(1))
NEXT, AT = torch.tensor([5, 6, 7]), torch.full((BATCH,), PROMPT)


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(TINY, "cpu", seed=3)


def _cache(kind: str, *, seed: int = 0) -> Any:
    if kind == "concat":
        return ConcatCache([None] * TINY.layers)
    if kind == "static":
        return StaticCache(TINY, BATCH, 64, "cpu")
    block = int(kind.removeprefix("paged_"))
    most = -(-(PROMPT + STEPS) // block)
    order = torch.randperm(BATCH * most, generator=torch.Generator().manual_seed(seed))
    return PagedCache(TINY, (1 + order).view(BATCH, most).int(), block)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def _after_next(model: Llama, prompts: Iterable[torch.Tensor]) -> torch.Tensor:
    parts = [torch.cat((p, t[None])) for p, t in zip(prompts, NEXT, strict=True)]
    return reference.logits_last(model, parts)


@pytest.mark.parametrize("kind", ["concat", "static", "paged_16", "paged_64"])
def test_greedy_tokens_and_logits_are_the_reference_s(model: Llama, kind: str) -> None:
    cache, tokens = _cache(kind), PROMPTS
    logits = model.prefill(PROMPTS, cache)
    for step in range(STEPS):
        want = reference.logits_last(model, list(tokens))
        assert _error(logits, want) < 3e-6
        assert torch.equal(logits.argmax(-1), want.argmax(-1))
        tokens = torch.cat((tokens, want.argmax(-1)[:, None]), dim=1)
        logits = model.decode(tokens[:, -1], AT + step, cache)
    # A model that repeats itself would prove little.
    assert len(set(tokens[:, PROMPT:].flatten().tolist())) > 5


def test_fused_pieces_are_traced_whole_and_change_nothing(monkeypatch: Any) -> None:
    whole = partial(torch.compile, backend="eager", fullgraph=True, dynamic=False)
    for module in ("model", "cache"):
        monkeypatch.setattr(f"perfsuite_inference.{module}.compiled", whole)
    model, cache = Llama(TINY, "cpu", seed=3), _cache("paged_16")
    model.prefill(PROMPTS, cache)
    before = model.decode(NEXT, AT, cache)
    model.fuse()
    cache.fuse()
    assert torch.equal(model.decode(NEXT, AT, cache), before)


@pytest.mark.parametrize("kind", ["static", "paged_16"])
def test_rows_of_several_lengths_are_each_alone(model: Llama, kind: str) -> None:
    cache, lengths = _cache(kind), torch.tensor([37, 1, 18])
    logits = model.prefill(PROMPTS, cache, lengths=lengths)
    parts = [prompt[:n] for prompt, n in zip(PROMPTS, lengths, strict=True)]
    assert _error(logits, reference.logits_last(model, parts)) < 3e-6
    assert _error(model.decode(NEXT, lengths, cache), _after_next(model, parts)) < 3e-6


@pytest.mark.parametrize("kind", ["static", "paged_16"])
def test_a_row_can_be_taken_by_another_prompt(model: Llama, kind: str) -> None:
    cache, other = _cache(kind), PROMPTS[:1, 5:17]
    model.prefill(PROMPTS, cache)
    model.prefill(other, cache, rows=torch.tensor([2]))
    logits = model.decode(NEXT, torch.tensor([37, 37, 12]), cache)
    assert _error(logits, _after_next(model, [*PROMPTS[:2], *other])) < 3e-6


@pytest.mark.parametrize("mistake", ["rotation", "position", "table", "row"])
def test_mistakes_are_seen(model: Llama, mistake: str) -> None:
    cache = _cache({"rotation": "concat", "table": "paged_16"}.get(mistake, "static"))
    model.prefill(PROMPTS, cache)
    if mistake == "table":
        cache.table = cache.table - 1
    if mistake == "row":
        cache.k = cache.k.roll(1, dims=1)
    # By one: the cache of ``concat`` stays right.
    at = AT - 1 if mistake in {"rotation", "position"} else AT
    wrong = model.decode(NEXT, at, cache)
    assert _error(wrong, _after_next(model, PROMPTS)) > 0.05


def test_several_tails_behind_a_prompt_are_each_alone(model: Llama) -> None:
    together = reference.logits_after(model, PROMPTS[0], NEXT)
    assert _error(together, _after_next(model, [PROMPTS[0]] * 3)) < 1e-12


def test_a_step_compiles_as_one_graph_with_the_same_result(model: Llama) -> None:
    cache = _cache("static")
    model.prefill(PROMPTS, cache)
    step = torch.compile(
        lambda t, p: model.decode(t, p, cache), backend="eager", fullgraph=True, dynamic=False
    )
    assert torch.equal(step(NEXT, AT), model.decode(NEXT, AT, cache))


def test_parameters_are_those_of_the_published_models() -> None:
    # Matrices of the layers and the head; 1,235,814,400 and 8,030,261,248 with norms and embedding.
    llama_1b, llama_8b = SHAPES["1b"], SHAPES["8b"]
    assert llama_1b.weights + 33 * 2048 == 1_235_814_400
    assert llama_8b.weights + 65 * 4096 + 128256 * 4096 == 8_030_261_248
