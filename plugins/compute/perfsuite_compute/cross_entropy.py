"""A language model's last layer and its loss: all logits at once, against a chunk at a time."""

from functools import partial
from typing import Any

from perfsuite import Beats, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

_SMALL: dict[str, Any] = {"dtype": "fp32", "tokens": 64, "width": 64, "vocab": 1000}
_LARGE: dict[str, Any] = {"dtype": "bf16", "tokens": 2048, "width": 2048}
# Logits of half of the tokens live at a time: fewer would read the weight's gradient oftener.
CHUNKS = 2
# Rows of logits are whole lines of memory apart, and products of whole vectors of them.
LINE, VECTOR = 64, 8
_REFERENCE_ROWS = 512


@operator(
    smoke={**_SMALL, "impl": "chunked"},
    nightly=[
        {**_LARGE, "vocab": 65536, "impl": ["eager", "chunked", "triton", "liger"]},
        {**_LARGE, "vocab": 50257, "impl": "triton"},
    ],
    full=[
        {**_LARGE, "vocab": [65536, 131072]},
        {**_LARGE, "vocab": 50257, "impl": ["eager", "compile"]},
        {**_SMALL, "impl": "eager"},
    ],
    needs=[cuda().when(dtype="bf16")],
    # The logits, the gradient of the tokens and that of the weight: three products.
    flops=lambda *, tokens, width, vocab: 6 * tokens * width * vocab,
    rate_dtype=lambda *, dtype: dtype,
    # The loss is fp32 whatever the logits are.
    tolerance=lambda *, dtype: None if dtype == "fp32" else 1e-2,
    # Logits and gradient in the dtype and in fp32, and one of each more on the way back; the
    # weight and its gradient, and both again in float64.
    memory_bytes=lambda tokens, width, vocab, **_: (25 * tokens + 30 * width) * vocab,
    tags=["fusion", "memory"],
    source="training memory: chapter 9 of the book; Liger Kernel (arXiv:2410.10989), section 3.2",
)
def cross_entropy(rng: Any, *, dtype: str, tokens: int, width: int, vocab: int) -> tuple[Any, ...]:
    """Take the mean cross-entropy of ``tokens`` rows against a vocabulary, and both gradients.

    ``eager`` holds all logits, once more in fp32, and their gradients; ``compile`` is the same
    through torch.compile, forward and back. ``chunked`` goes through half of the tokens at a time
    and writes the gradient down by hand, with PyTorch's own operations. ``triton`` does the same
    with one kernel between the matrix products, which writes the gradient over the logits (Liger's
    fused linear cross-entropy), ``liger`` is that itself, where it is installed. What they differ
    in first is the memory that a launch takes, then the trips of the logits. 50,257 is GPT-2's
    vocabulary: rows of logits start at no multiple of 16 bytes, for which cuBLAS has no fast
    kernels. ``chunked`` and ``triton`` have rows of logits further apart, and multiply the last
    word by itself.

    On an H200 ``triton`` takes 2.4 ms for 65,536 words, 84 % of the rate of bf16 products, and as
    long as cuBLAS takes for three products of random matrices of these sizes alone (2.44 ms).
    """
    name = DTYPES[dtype]
    # Logits of variance 1, as of a model that has begun to learn. How far it has come is another
    # number of each seed, and far from its neighbours': losses that differ by less than bf16 tells
    # apart would not show a result that belongs to other data.
    learnt = 4 * (rng.seed * 0.618 % 1)
    x, weight = rng.randn(tokens, width, dtype=name), rng.randn(vocab, width, dtype=name)
    weight.mul_(width**-0.5)
    target = rng.randint(0, vocab, tokens, dtype="int64")
    target[-1] = vocab - 1  # else the last word's gradient is too small to be missed
    return x.add_(weight[target], alpha=learnt), weight, target


@cross_entropy.reference
def _reference(x: Any, weight: Any, target: Any) -> tuple[Any, ...]:
    """Return loss and gradients in float64, some tokens at a time."""
    wide, rows = weight.double(), x.shape[0]
    loss, dx = wide.new_zeros(()), torch.empty(x.shape, dtype=wide.dtype, device=x.device)
    dweight = torch.zeros_like(wide)
    for part in _parts(rows, _REFERENCE_ROWS):
        tokens, right = x[part].double(), torch.arange(x[part].shape[0], device=x.device)
        logits = tokens @ wide.T
        normaliser = logits.logsumexp(1)
        loss += (normaliser - logits[right, target[part]]).sum() / rows
        grad = logits.sub_(normaliser[:, None]).exp_()
        grad[right, target[part]] -= 1
        dx[part] = grad @ wide / rows
        dweight.addmm_(grad.T, tokens, alpha=1 / rows)
    return loss, dx, dweight


def _loss(x: Any, weight: Any, target: Any) -> Any:
    functional = torch.nn.functional
    return functional.cross_entropy(functional.linear(x, weight).float(), target)


@cross_entropy.impl
def _eager(x: Any, weight: Any, target: Any, loss_of: Any = _loss) -> Any:
    leaves = [each.detach().requires_grad_() for each in (x, weight)]
    with torch.enable_grad():
        loss = loss_of(leaves[0], leaves[1], target)
    return loss.detach(), *torch.autograd.grad(loss, leaves)


cross_entropy.impl(
    lambda ctx: partial(_eager, loss_of=compiled(_loss)), name="compile", needs=TRITON, tier="full"
)


@cross_entropy.impl(needs=[*TRITON, package("liger_kernel")])
def _liger(ctx: Any) -> Any:
    fused = Later("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    return partial(_eager, loss_of=fused)


def _in_chunks(step: Any, x: Any, weight: Any, target: Any, *, moves: bool = True) -> Any:
    """Go through the tokens in chunks, or hold each against the targets of the first.

    A step returns the gradient of some logits, which may lie where they were, and adds to the
    losses.
    """
    rows, vocab = -(-len(x) // CHUNKS), len(weight)
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    room = x.new_empty(rows, -(-vocab // LINE) * LINE)
    # There are fast kernels for the words that fill whole vectors; the others follow.
    chunks, all_words = _parts(len(x), rows), _parts(vocab, vocab // VECTOR * VECTOR)
    for part in chunks:
        tokens = x[part]
        logits = room[: len(tokens), :vocab]
        for words in all_words:
            torch.mm(tokens, weight[words].T, out=logits[:, words])
        against = target[part if moves else chunks[0]][: len(tokens)]
        grad = step(logits, against, losses[part], 1 / len(x))
        for words in all_words:
            dx[part].addmm_(grad[:, words], weight[words], beta=int(words.start > 0))
            dweight[words].addmm_(grad[:, words].T, tokens, beta=int(part.start > 0))
    return losses.sum(), dx, dweight


def _parts(count: int, step: int) -> list[slice]:
    return [slice(start, min(count, start + step)) for start in range(0, count, step)]


def _by_torch(logits: Any, target: Any, losses: Any, factor: float) -> Any:
    log_shares = torch.log_softmax(logits.float(), dim=1)
    at = target[:, None]
    losses.copy_(log_shares.gather(1, at)[:, 0] * -factor)
    shares = log_shares.exp_()
    shares.scatter_add_(1, at, torch.full_like(at, -1, dtype=shares.dtype))
    return shares.mul_(factor).to(logits.dtype)


cross_entropy.wrong(partial(_in_chunks, _by_torch, moves=False))
cross_entropy.impl(partial(_in_chunks, _by_torch), name="chunked")


@cross_entropy.impl(
    needs=TRITON,
    beats=Beats(
        "eager",
        2.5,
        "Liger Kernel (arXiv:2410.10989): 60 % less memory over whole trainings, a ratio of 2.5, "
        "most of it by this loss",
        at={"dtype": "bf16", "vocab": (65536, 131072)},
        metric="peak_bytes",
        name="fused_loss_memory",
    ),
)
def _triton(ctx: Any) -> Any:
    launch = Later("perfsuite_compute.cross_entropy_triton").cross_entropy

    def step(logits: Any, target: Any, losses: Any, factor: float) -> Any:
        launch(logits, target, losses, factor=factor)
        return logits

    return partial(_in_chunks, step)
