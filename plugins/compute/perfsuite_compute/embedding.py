"""Rows of a vocabulary taken by token, and the gradient of all of them."""

from typing import Any

from perfsuite import Beats, Work, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, torch

kernels = Later("perfsuite_compute.embedding_triton")
# Llama-3-8B's card: 128,256 words of 4096 numbers.
_USUAL: dict[str, Any] = {"dtype": "bf16", "vocab": 128256, "width": 4096, "tokens": 16384}
_SMALL: dict[str, Any] = {"dtype": "fp32", "vocab": 1000, "width": 136, "tokens": 300}


def repeats(tokens: int) -> list[int]:
    """Return how often each word comes: as 1, 1/2, 1/3... (Zipf), and each of the last ones once.

    The most frequent is a twelfth of a text, the sum of 128,256 such terms being 12.3.
    """
    found: list[int] = []
    left = tokens
    while left:
        found.append(min(left, max(1, tokens // (12 * (len(found) + 1)))))
        left -= found[-1]
    return found


def _work(dtype: str, op: str, vocab: int, width: int, tokens: int, impl: str) -> Work:
    row = width * (2 if dtype == "bf16" else 4)
    if op == "fwd":
        return Work(row * len(repeats(tokens)) + 8 * tokens, row * tokens)
    return Work(row * tokens + 8 * tokens, row * vocab)


@operator(
    smoke={**_SMALL, "op": "fwd", "impl": "torch"},
    nightly=[{**_USUAL, "op": "fwd", "impl": ["torch", "triton"]}, {**_USUAL, "op": "bwd"}],
    full={**_SMALL, "op": "bwd", "impl": ["torch", "atomics"]},
    needs=[cuda().when(dtype="bf16")],
    work=_work,
    # A gradient in the dtype, in fp32 (atomics) and float64, compared some at a time.
    memory_bytes=lambda vocab, width, tokens, **_: (20 * vocab + 40 * tokens) * width,
    # Rows are moved as they are.
    tolerance=lambda *, op: 0.0 if op == "fwd" else None,
    tags=["embedding", "reduction"],
    source="PyTorch, torch.nn.functional.embedding and its backward; Llama-3-8B's model card",
)
def embedding(rng: Any, *, dtype: str, op: str, vocab: int, width: int, tokens: int) -> Any:
    """Take the rows of ``tokens`` words, or (``bwd``) add their gradients into a vocabulary's.

    Words come as often as in a text, and frequent ones have low numbers, as merges give them. A row
    that comes again is read once. The gradient of most rows is zero and written all the same, which
    is most of ``bwd``. ``torch`` sorts the tokens, and so does ``triton``, which fills all rows
    with zeros and then writes those that have a gradient. ``atomics`` adds in fp32, since a
    thousand sums in bf16 would keep no digit of the last, and then has all rows to convert.
    """
    name = DTYPES[dtype]
    order = rng.rand(tokens).argsort()
    each = torch.tensor(repeats(tokens), device=order.device)
    index = torch.arange(len(each), device=order.device).repeat_interleave(each)[order]
    if op == "fwd":
        return rng.randn(vocab, width, dtype=name), index, rng.empty(tokens, width, dtype=name)
    return rng.randn(tokens, width, dtype=name), index, rng.empty(vocab, width, dtype=name)


@embedding.reference
def _reference(given: Any, index: Any, out: Any, *, op: str) -> Any:
    """Take by flat index; add up in float64."""
    if op == "fwd":
        columns = torch.arange(given.shape[1], device=given.device)
        return torch.take(given, index[:, None] * given.shape[1] + columns)
    sums = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    return sums.index_put_((index,), given.double(), accumulate=True)


@embedding.wrong
def _mistaken(given: Any, index: Any, out: Any, *, op: str) -> Any:
    """Take the row of the token before; keep one of the gradients of a word."""
    if op == "fwd":
        return given[index.roll(1)]
    return out.zero_().index_put_((index,), given)


@embedding.impl
def _torch(ctx: Any, *, op: str, vocab: int) -> Any:
    if op == "fwd":
        return lambda given, index, out: torch.nn.functional.embedding(index, given)
    backward = torch.ops.aten.embedding_dense_backward
    return lambda given, index, out: backward(given, index, vocab, -1, False)


@embedding.impl
def _atomics(given: Any, index: Any, out: Any) -> None:
    sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    out.copy_(sums.index_add_(0, index, given.float()))


@embedding.impl(
    needs=TRITON,
    beats=Beats(
        "atomics",
        2.0,
        "counted: sums in fp32 are written as zeros, read, and written as bf16, 10 bytes an "
        "element of the vocabulary where 2 are needed; 2 of 4.7 with the tokens' gradients are "
        "asked for",
        at={"op": "bwd", "tokens": 16384},
    ),
)
def _triton(ctx: Any, *, op: str) -> Any:
    return kernels.take if op == "fwd" else kernels.segments
