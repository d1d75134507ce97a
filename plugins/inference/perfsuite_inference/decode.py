"""One decode step of a whole model: what the cache, a CUDA graph and a compiler are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import perfsuite
from perfsuite import Claim, Metric, Regime, Work, Workload, cuda, package
from perfsuite_inference.shapes import SHAPES

_SEED = 0
# Positions beyond the context that the static cache has room for.
_ROOM = 128
# bf16 rounds each of some 100 operations in a row by up to 2 ** -9; fp32 keeps its own limit.
_TOLERANCES = {"bfloat16": 4e-2, "float32": None}


def _is_asked(size: str, batch: int, context: int, impl: str) -> bool:
    # Several processes hold the variant at once: 32 rows of 8b do not fit a GPU that often.
    return batch == 1 or (impl != "compiled" and size != "8b")


def _work(size: str, batch: int, context: int, impl: str) -> Work:
    s = SHAPES[size]
    scores = 4 * s.layers * s.heads * s.head * (context + 1)
    return Work(
        read_bytes=s.item_bytes * (s.weights + batch * context * s.kv_elements),
        write_bytes=s.item_bytes * batch * (s.kv_elements + s.vocab),
        flops=batch * (2 * s.weights + scores),
        rate_dtype=s.rate_dtype,
    )


def _memory_bytes(size: str, batch: int, context: int, impl: str) -> int:
    s = SHAPES[size]
    weights = s.item_bytes * (s.weights + s.hidden * s.vocab)
    caches = 4 * s.item_bytes * batch * (context + _ROOM) * s.kv_elements
    # The reference: the head in float64, scores of 1 GiB at a time and what becomes of them.
    return weights + caches + 8 * s.hidden * s.vocab + (4 << 30 if size != "tiny" else 1 << 28)


@perfsuite.case(
    axes={
        "size": ["1b"],
        "batch": [1, 32],
        "context": [2048],
        "impl": ["eager_concat", "static", "graph"],
    },
    smoke={"size": ["tiny"], "batch": [2], "context": [255]},
    # Compiling takes half a minute and more in every process.
    full={"size": ["1b", "8b"], "impl": ["eager_concat", "static", "graph", "compiled"]},
    only=_is_asked,
    needs=(
        package("torch"),
        cuda().when(impl=("graph", "compiled")),
        package("triton").when(impl="compiled"),
        cuda().when(size=("1b", "8b")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    regime=Regime.END_TO_END,
    cold=False,
    metrics=(Metric("kernels"),),
    tags=["decode", "kv-cache", "cuda-graph"],
    source="chapters 7 and 10 of the book; PyTorch blog, Accelerating Generative AI with PyTorch "
    "II: static key-value cache, torch.compile",
)
def decode(ctx: Any, size: str, batch: int, context: int, impl: str) -> Workload:
    """Take one token a row through a Llama-shaped model, each row behind ``context`` others.

    ``eager_concat`` appends to the cache by ``torch.cat``, which copies all of it in every layer.
    ``static`` writes into a cache allocated once and attends over its whole length with a mask,
    128 positions longer than needed. ``graph`` is that step captured as a CUDA graph, ``compiled``
    that step through ``torch.compile`` in its default mode. The time is the host's, of a step that
    is launched and awaited, as a server sees it. The work is one read of all weights and of the
    keys and values of the context: at batch 1 the least time is that of reading the weights.
    ``kernels`` counts what a step launches on a GPU, as a capture of it shows. Two prompts take
    turns over the rows, so that a row that reads its neighbour's cache is seen. On an H200 the
    graph of 1b takes 2.1 ms at batch 1, 27 % of the memory's rate: 520 small kernels, which nothing
    fuses, and attention through a mask; a persistent kernel per layer is what is missing.
    """
    import torch

    from perfsuite_inference import reference

    model, prompts = _model_and_prompts(ctx, size, min(batch, 2), context)
    s = model.shape
    step = _plain_step(model, prompts, batch, impl)

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        tokens = rng.randint(0, s.vocab, batch, dtype="int64")
        return tokens, torch.full_like(tokens, context)

    def expected(tokens: Any, positions: Any) -> Any:
        parts = len(prompts)
        out = torch.empty(batch, s.vocab, dtype=torch.float64, device=tokens.device)
        for index in range(parts):
            out[index::parts] = reference.logits_after(model, prompts[index], tokens[index::parts])
        return out

    fn = step
    if impl == "graph":
        from perfsuite_inference.graphs import GraphedStep

        fn = GraphedStep(step, batch, context, model.device)
    return Workload(
        fn=fn,
        make_inputs=make_inputs,
        reference=expected,
        wrong=_from_zero(_concat_step(model, prompts, batch)),
        tolerance=_TOLERANCES[s.dtype],
        captures=False,
        rotates=False,
        exact=_counted(ctx, step, batch, context),
    )


def _model_and_prompts(ctx: Any, size: str, count: int, length: int) -> tuple[Any, Any]:
    """Return the model and prompts [count, length], the same for every seed of the run."""
    import torch

    from perfsuite_inference.model import Llama

    torch.backends.cuda.matmul.allow_tf32 = False
    model = Llama(size, ctx.device, getattr(torch, SHAPES[size].dtype), _SEED)
    generator = torch.Generator(ctx.device).manual_seed(_SEED + 1)
    where = {"device": ctx.device, "generator": generator}
    return model, torch.randint(0, SHAPES[size].vocab, (count, length), **where)


def _plain_step(model: Any, prompts: Any, batch: int, impl: str) -> Callable[..., Any]:
    """Return the step that a graph would capture."""
    if impl == "eager_concat":
        return _concat_step(model, prompts, batch)
    step = _static_step(model, prompts, batch)
    if impl != "compiled":
        return step
    import torch
    from torch._inductor import config

    # One thread: a worker's pool of compiling processes takes longer to start than it saves.
    config.compile_threads = 1
    compiled: Callable[..., Any] = torch.compile(step, dynamic=False)
    return compiled


def _concat_step(model: Any, prompts: Any, batch: int) -> Callable[..., Any]:
    from perfsuite_inference.cache import ConcatCache

    cache = ConcatCache(model.shape)
    model.prefill(prompts, _Turns(cache, batch))

    def step(tokens: Any, positions: Any) -> Any:
        # Every launch is the same step: it grows a cache of its own.
        return model.decode(tokens, positions, cache.fork())

    return step


def _static_step(model: Any, prompts: Any, batch: int) -> Callable[..., Any]:
    from perfsuite_inference.cache import StaticCache

    length = prompts.shape[1] + _ROOM
    cache = StaticCache(model.shape, batch, length, model.device, model.dtype)
    model.prefill(prompts, _Turns(cache, batch))

    def step(tokens: Any, positions: Any) -> Any:
        return model.decode(tokens, positions, cache)

    return step


class _Turns:
    """Stores each layer of a few prompts in all rows of a cache, by turns."""

    def __init__(self, cache: Any, batch: int) -> None:
        self._cache = cache
        self._batch = batch

    def store(self, layer: int, k: Any, v: Any, rows: Any) -> None:
        every = rows.new_tensor(range(self._batch))
        turn = every % k.shape[0]
        self._cache.store(layer, k[turn], v[turn], every)


def _from_zero(step: Callable[..., Any]) -> Callable[..., Any]:
    """Count rotary positions from zero in every call, as if there were no cache."""

    def wrong(tokens: Any, positions: Any) -> Any:
        return step(tokens, positions - positions)

    return wrong


def _counted(
    ctx: Any, step: Callable[..., Any], batch: int, context: int
) -> Callable[[], Mapping[str, float]] | None:
    """Return what counts a step's kernels; a CPU launches none."""
    if ctx.device == "cpu":
        return None

    def exact() -> Mapping[str, float]:
        import torch

        from perfsuite_inference.graphs import count_kernels

        tokens = torch.zeros(batch, dtype=torch.int64, device=ctx.device)
        positions = torch.full_like(tokens, context)
        return {"kernels": count_kernels(lambda: step(tokens, positions))}

    return exact


# 1.65 was for a model of 8e9 parameters, and a smaller one waits for its launches more.
_BLOG = (
    "a third party's blog (cloudai.pt, CUDA Graphs + torch.compile): one decode step of Llama 3.1 "
    "8B on an H100 takes 8.4 ms in eager mode and 5.1 ms as a CUDA graph, 1.65; less is asked for"
)
CASES: tuple[perfsuite.Case | Claim, ...] = (
    decode,
    Claim(
        name="decode_graph",
        case="decode",
        faster={"impl": "graph"},
        than={"impl": "static"},
        by=1.3,
        at={"size": ("1b", "8b"), "batch": (1,)},
        needs=(cuda(),),
        source=_BLOG,
    ),
)
