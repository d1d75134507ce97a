"""The model and its caches against the float64 reference, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from perfsuite_inference import reference
from perfsuite_inference.cache import BlockPool, ConcatCache, PagedCache, StaticCache
from perfsuite_inference.model import Llama
from perfsuite_inference.shapes import SHAPES

BATCH, PROMPT, STEPS = 3, 37, 4
WHERE = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama("tiny", "cpu", torch.float32, seed=3)


def _prompts() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, SHAPES["tiny"].vocab, (BATCH, PROMPT), generator=generator)


def _table(block: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    most = -(-(PROMPT + STEPS) // block)
    return (1 + torch.randperm(BATCH * most, generator=generator)).view(BATCH, most).int()


def _cache(kind: str) -> Any:
    shape, dtype = SHAPES["tiny"], torch.float32
    if kind == "concat":
        return ConcatCache(shape)
    if kind == "static":
        return StaticCache(shape, BATCH, 64, WHERE, dtype)
    block = int(kind.removeprefix("paged_"))
    table = _table(block)
    return PagedCache(shape, table, 1 + table.numel(), block, dtype)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("kind", ["concat", "static", "paged_16", "paged_64"])
def test_greedy_tokens_and_logits_are_the_reference_s(model: Llama, kind: str) -> None:
    prompts, cache = _prompts(), _cache(kind)
    logits = model.prefill(prompts, cache)
    assert _error(logits, reference.logits_last(model, list(prompts))) < 3e-6
    tokens = [logits.argmax(-1)]
    for step in range(STEPS - 1):
        logits = model.decode(tokens[-1], torch.full((BATCH,), PROMPT + step), cache)
        tokens.append(logits.argmax(-1))
    want = torch.stack([reference.greedy(model, prompt, STEPS) for prompt in prompts])
    assert torch.equal(torch.stack(tokens, dim=1), want)
    whole = [torch.cat((p, t)) for p, t in zip(prompts, want[:, :-1], strict=True)]
    assert _error(logits, reference.logits_last(model, whole)) < 3e-6
    assert len(set(want.flatten().tolist())) > 5  # a model that repeats itself would prove little


@pytest.mark.parametrize("kind", ["static", "paged_16"])
def test_rows_of_several_lengths_are_each_alone(model: Llama, kind: str) -> None:
    prompts, cache, lengths = _prompts(), _cache(kind), torch.tensor([37, 1, 18])
    logits = model.prefill(prompts, cache, lengths=lengths)
    parts = [p[:n] for p, n in zip(prompts, lengths, strict=True)]
    assert _error(logits, reference.logits_last(model, parts)) < 3e-6
    logits = model.decode(torch.tensor([5, 6, 7]), lengths, cache)
    parts = [torch.cat((p, torch.tensor([t]))) for p, t in zip(parts, (5, 6, 7), strict=True)]
    assert _error(logits, reference.logits_last(model, parts)) < 3e-6


@pytest.mark.parametrize("kind", ["static", "paged_16"])
def test_a_row_can_be_taken_by_another_prompt(model: Llama, kind: str) -> None:
    prompts, cache = _prompts(), _cache(kind)
    model.prefill(prompts, cache)
    model.prefill(prompts[:1, 5:17], cache, rows=torch.tensor([2]))
    logits = model.decode(torch.tensor([5, 6, 7]), torch.tensor([37, 37, 12]), cache)
    parts = [prompts[0], prompts[1], prompts[0, 5:17]]
    parts = [torch.cat((p, torch.tensor([t]))) for p, t in zip(parts, (5, 6, 7), strict=True)]
    assert _error(logits, reference.logits_last(model, parts)) < 3e-6


def test_where_blocks_lie_changes_nothing(model: Llama) -> None:
    results = []
    for seed in (1, 2):
        table = _table(16, seed=seed)
        cache = PagedCache(model.shape, table, 1 + table.numel(), 16, torch.float32)
        model.prefill(_prompts(), cache)
        results.append(model.decode(torch.tensor([5, 6, 7]), torch.full((3,), PROMPT), cache))
    assert torch.equal(*results)


@pytest.mark.parametrize("mistake", ["rotation", "position", "table", "row"])
def test_mistakes_are_seen(model: Llama, mistake: str) -> None:
    prompts, tokens = _prompts(), torch.tensor([5, 6, 7])
    at = torch.full((BATCH,), PROMPT)
    cache: Any = _cache("concat" if mistake == "rotation" else "static")
    if mistake == "table":
        cache = _cache("paged_16")
    model.prefill(prompts, cache)
    if mistake in ("rotation", "position"):  # by one: the cache of ``concat`` stays right
        at = at - 1
    if mistake == "table":
        cache.table = cache.table - 1
    if mistake == "row":
        cache.k = cache.k.roll(1, dims=1)
    wrong = model.decode(tokens, at, cache)
    want = reference.logits_last(
        model, [torch.cat((p, t[None])) for p, t in zip(prompts, tokens, strict=True)]
    )
    assert _error(wrong, want) > 0.05


def test_several_tails_behind_a_prompt_are_each_alone(model: Llama) -> None:
    prompt, tails = _prompts()[0], torch.tensor([5, 6, 5])
    together = reference.logits_after(model, prompt, tails)
    apart = reference.logits_last(model, [torch.cat((prompt, t[None])) for t in tails])
    assert _error(together, apart) < 1e-12


def test_weights_follow_from_the_seed() -> None:
    first, again, other = (Llama("tiny", "cpu", torch.float32, seed) for seed in (1, 1, 2))
    assert torch.equal(first.layers[3].down, again.layers[3].down)
    assert torch.equal(first.head, again.head)
    assert not torch.equal(first.layers[0].qkv, other.layers[0].qkv)


def test_a_step_compiles_as_one_graph_with_the_same_result(model: Llama) -> None:
    cache = _cache("static")
    model.prefill(_prompts(), cache)
    tokens, at = torch.tensor([5, 6, 7]), torch.full((BATCH,), PROMPT)
    step = torch.compile(
        lambda t, p: model.decode(t, p, cache), backend="eager", fullgraph=True, dynamic=False
    )
    assert torch.equal(step(tokens, at), model.decode(tokens, at, cache))


def test_parameters_are_those_of_the_published_models() -> None:
    # Matrices of the layers and the head; 1,235,814,400 and 8,030,261,248 with norms and embedding.
    llama_1b, llama_8b = SHAPES["1b"], SHAPES["8b"]
    assert llama_1b.weights + 33 * 2048 == 1_235_814_400
    assert llama_8b.weights + 65 * 4096 + 128256 * 4096 == 8_030_261_248


def test_the_pool_keeps_block_0_back_and_gives_all_or_nothing() -> None:
    pool = BlockPool(5)
    taken = pool.take(3)
    assert sorted(taken) == [1, 2, 3]
    assert pool.take(2) == []
    assert len(pool) == 1
    pool.give_back(taken)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]


def test_unfit_input_is_refused_in_words(model: Llama) -> None:
    with pytest.raises(ValueError, match="no model of size '70b': name one of tiny, 1b, 8b"):
        Llama("70b", "cpu", torch.float32)
    longer = torch.zeros(1, model.shape.positions + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="4097 tokens: this model has 4096 positions"):
        model.prefill(longer, None)
    cache = ConcatCache(model.shape)
    model.prefill(_prompts(), cache)
    with pytest.raises(ValueError, match="store all rows once"):
        model.prefill(_prompts()[:1], cache, rows=torch.tensor([1]))
