"""A language model's last layer and its loss: all logits at once, against a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
_IMPLS = ("eager", "chunked", "triton")
GPT2_VOCAB, VOCAB, _WIDE_VOCAB = 50257, 65536, 131072
# Logits of half of the tokens live at a time: fewer would read the weight's gradient oftener.
CHUNKS = 2
# Rows of logits are whole lines of memory apart, and products of whole vectors of them.
LINE, VECTOR = 64, 8
_REFERENCE_ROWS = 512


def _is_asked(dtype: str, tokens: int, width: int, vocab: int, impl: str) -> bool:
    return vocab != GPT2_VOCAB or impl != "chunked"


def _work(dtype: str, tokens: int, width: int, vocab: int, impl: str) -> Work:
    size = _DTYPES[dtype][1]
    moved = (tokens + vocab) * width * size
    return Work(
        read_bytes=moved + 8 * tokens,
        write_bytes=moved + 4,
        # The logits, the gradient of the tokens and that of the weight: three products.
        flops=6 * tokens * width * vocab,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, tokens: int, width: int, vocab: int, impl: str) -> int:
    size = _DTYPES[dtype][1]
    rows = tokens if impl in ("eager", "compile") else -(-tokens // CHUNKS)
    # Logits and gradient in the dtype and in fp32, and one of each more on the way back.
    logits = rows * vocab * (3 * size + 3 * 4)
    reference = 8 * (3 * min(tokens, _REFERENCE_ROWS) * vocab + 3 * vocab * width)
    return logits + reference + (tokens + vocab) * width * 3 * size


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "tokens": [2048],
        "width": [2048],
        "vocab": [GPT2_VOCAB, VOCAB],
        "impl": list(_IMPLS),
    },
    smoke={
        "dtype": ["fp32"],
        "tokens": [64],
        "width": [64],
        "vocab": [1000],
        "impl": ["eager", "chunked"],
    },
    full={"vocab": [GPT2_VOCAB, VOCAB, _WIDE_VOCAB], "impl": [*_IMPLS, "compile"]},
    only=_is_asked,
    full_only=[{"vocab": [GPT2_VOCAB, 1000], "impl": ["eager"]}],
    needs=(
        package("torch"),
        package("triton").when(impl=("triton", "compile")),
        cuda().when(impl=("triton", "compile")),
        cuda().when(dtype="bf16"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["fusion", "memory"],
    source="training memory: chapter 9 of the book; Liger Kernel (arXiv:2410.10989), section 3.2",
)
def cross_entropy(ctx: Any, dtype: str, tokens: int, width: int, vocab: int, impl: str) -> Workload:
    """Take the mean cross-entropy of ``tokens`` rows against a vocabulary, and both gradients.

    ``eager`` holds all logits, once more in fp32, and their gradients; ``compile`` is the same
    through torch.compile, forward and back. ``chunked`` goes through half of the tokens at a time
    and writes the gradient down by hand, with PyTorch's own operations. ``triton`` does the same
    with one kernel between the matrix products, which writes the gradient over the logits (Liger's
    fused linear cross-entropy). What they differ in first is the memory that a launch takes, then
    the trips of the logits. 50,257 is GPT-2's vocabulary: rows of logits start at no multiple of 16
    bytes, for which cuBLAS has no fast kernels. The latter two have rows of logits further apart,
    and multiply the last word by itself.

    On an H200 ``triton`` takes 2.4 ms for 65,536 words, 84 % of the rate of bf16 products, and as
    long as cuBLAS takes for three products of random matrices of these sizes alone (2.44 ms).
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    name = _DTYPES[dtype][0]

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        # Logits of variance 1 to 4, as of a model that has begun to learn: of one variance the loss
        # would hardly depend on the data. The last word is a target, or its gradient is next to 0.
        x, weight = rng.randn(tokens, width, dtype=name), rng.randn(vocab, width, dtype=name)
        weight.mul_(width**-0.5 * (1 + rng.rand(1, dtype=name)))
        target = rng.randint(0, vocab, tokens, dtype="int64")
        target[-1] = vocab - 1
        return x, weight, target

    return Workload(
        fn=_launch_of(impl),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=_chunked(_by_torch, moves=False),
        # The loss is fp32 whatever the logits are.
        tolerance=None if dtype == "fp32" else 1e-2,
    )


def _launch_of(impl: str) -> Callable[..., tuple[Any, ...]]:
    from perfsuite_compute.compiling import compiled

    if impl in ("chunked", "triton"):
        return _chunked(_by_torch if impl == "chunked" else _by_triton)
    return _walked(compiled(_loss) if impl == "compile" else _loss)


def _loss(x: Any, weight: Any, target: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(functional.linear(x, weight).float(), target)


def _walked(loss_of: Callable[[Any, Any, Any], Any]) -> Callable[..., tuple[Any, ...]]:
    """Return the launch that takes the loss, and its gradients by autograd."""
    import torch

    def launch(x: Any, weight: Any, target: Any) -> tuple[Any, ...]:
        leaves = [each.detach().requires_grad_() for each in (x, weight)]
        with torch.enable_grad():
            loss = loss_of(leaves[0], leaves[1], target)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    return launch


# Returns the gradient of some logits, which may lie where they were, and adds to the losses.
Step = Callable[[Any, Any, Any, float], Any]


def _chunked(step: Step, *, moves: bool = True) -> Callable[..., tuple[Any, ...]]:
    """Return the launch that goes through the tokens in chunks.

    Without ``moves`` each chunk is held against the targets of the first: the negative control.
    """

    def launch(x: Any, weight: Any, target: Any) -> tuple[Any, ...]:
        import torch

        rows, vocab = -(-x.shape[0] // CHUNKS), weight.shape[0]
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        losses = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        room = x.new_empty(rows, -(-vocab // LINE) * LINE)
        for start, part in _parts(x.shape[0], rows):
            tokens = x[part]
            logits = room[: tokens.shape[0], :vocab]
            for words in _words(vocab):
                torch.mm(tokens, weight[words].T, out=logits[:, words])
            against = target[part] if moves else target[: tokens.shape[0]]
            grad = step(logits, against, losses[part], 1 / x.shape[0])
            for words in _words(vocab):
                _product(grad[:, words], weight[words], dx[part], adds=words.start > 0)
                _product(grad[:, words].T, tokens, dweight[words], adds=start > 0)
        return losses.sum(), dx, dweight

    return launch


def _words(vocab: int) -> list[slice]:
    """Return the words that fill whole vectors, for which there are fast kernels, and the rest."""
    whole = vocab // VECTOR * VECTOR
    return [each for each in (slice(0, whole), slice(whole, vocab)) if each.start < each.stop]


def _product(a: Any, b: Any, out: Any, *, adds: bool) -> None:
    """Write the product of a and b to out, or add it."""
    import torch

    if adds:
        out.addmm_(a, b)
    else:
        torch.mm(a, b, out=out)


def _parts(count: int, step: int) -> Iterator[tuple[int, slice]]:
    for start in range(0, count, step):
        yield start, slice(start, min(count, start + step))


def _by_torch(logits: Any, target: Any, losses: Any, factor: float) -> Any:
    import torch

    log_shares = torch.log_softmax(logits.float(), dim=1)
    at = target[:, None]
    losses.copy_(log_shares.gather(1, at)[:, 0] * -factor)
    shares = log_shares.exp_()
    shares.scatter_add_(1, at, torch.full_like(at, -1, dtype=shares.dtype))
    return shares.mul_(factor).to(logits.dtype)


def _by_triton(logits: Any, target: Any, losses: Any, factor: float) -> Any:
    from perfsuite_compute import cross_entropy_triton

    cross_entropy_triton.cross_entropy(logits, target, losses, factor=factor)
    return logits


def _reference(x: Any, weight: Any, target: Any) -> tuple[Any, ...]:
    """Return loss and gradients in float64, some tokens at a time."""
    import torch

    wide, rows = weight.double(), x.shape[0]
    loss, dx = wide.new_zeros(()), torch.empty(x.shape, dtype=wide.dtype, device=x.device)
    dweight = torch.zeros_like(wide)
    for _, part in _parts(rows, _REFERENCE_ROWS):
        tokens, right = x[part].double(), torch.arange(x[part].shape[0], device=x.device)
        logits = tokens @ wide.T
        normaliser = logits.logsumexp(1)
        loss += (normaliser - logits[right, target[part]]).sum() / rows
        grad = logits.sub_(normaliser[:, None]).exp_()
        grad[right, target[part]] -= 1
        dx[part] = grad @ wide / rows
        dweight.addmm_(grad.T, tokens, alpha=1 / rows)
    return loss, dx, dweight


CASES: tuple[perfsuite.Case | Claim, ...] = (
    cross_entropy,
    Claim(
        name="fused_loss_memory",
        case="cross_entropy",
        faster={"impl": "triton"},
        than={"impl": "eager"},
        by=2.5,
        metric="peak_bytes",
        at={"dtype": ("bf16",), "vocab": (VOCAB, _WIDE_VOCAB)},
        needs=(cuda(),),
        source="Liger Kernel (arXiv:2410.10989): 60 % less memory over whole trainings, a ratio of "
        "2.5, most of it by this loss",
    ),
)
