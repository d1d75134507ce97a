"""A token chosen from filtered logits: sorted first, or by a threshold that is searched for."""

import math
from typing import Any

from perfsuite import Beats, Work, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

kernels = Later("perfsuite_inference.sampling_triton")
# Llama-3-8B's vocabulary.
VOCAB = 128256
TOP_K, TOP_P, MIN_P = 50, 0.9, 0.05
_ITEM = {"bf16": 2, "fp32": 4}


def logits_by_rank(dtype: str, place: Any = "cpu") -> Any:
    """Return the logits of all words from the likeliest on: shares fall as rank ** -1.6.

    The 27 first make up 0.9, and without the last they lack 0.001: no sum in fp32 is so far off.
    """
    ranks = torch.arange(1, VOCAB + 1, dtype=torch.float64, device=place)
    return (8 - 1.6 * ranks.log()).to(getattr(torch, DTYPES[dtype]))


@operator(
    smoke={"dtype": "fp32", "keep": "top_p", "batch": 2, "impl": "torch"},
    nightly=[
        {"dtype": "bf16", "keep": ["top_k", "top_p", "min_p"], "batch": 32},
        {"dtype": "bf16", "keep": "top_p", "batch": [1, 256]},
    ],
    full=[
        {"dtype": "bf16", "keep": ["top_k", "min_p"], "batch": [1, 256]},
        {"dtype": "fp32", "keep": ["top_k", "top_p", "min_p"], "batch": 32},
    ],
    needs=[cuda().when(dtype="bf16")],
    work=lambda dtype, keep, batch, impl: Work(batch * (_ITEM[dtype] * VOCAB + 4), 8 * batch),
    tags=["sampling", "sort", "decode"],
    source="arXiv:1904.09751 (top-p), arXiv:2407.01082 (min-p); Llama-3-8B's model card",
)
def sampling(rng: Any, *, dtype: str, keep: str, batch: int) -> tuple[Any, ...]:
    """Choose a token for each row of logits among those that ``keep`` lets through.

    ``top_k`` keeps 50, ``top_p`` as many as make up 0.9, ``min_p`` those with 0.05 of the largest
    share. All words with the logit of the last one kept are kept, too. Uniform numbers are inputs:
    the token is the first, in order of words, with which the kept shares exceed that part of their
    sum. How many are kept is returned beside it, for the check. ``torch`` sorts as servers do.
    ``triton`` halves the interval in which the least logit lies, each time with a read of the row
    that L2 answers. It has one program a row, so that a batch of one is at work on one SM.
    ``compile`` is ``torch`` compiled: torch 2.11 cannot on a GPU, since a scan of long rows may
    load no number of the row there. The numbers are drawn so that sums rounded to fp32 decide
    alike.
    """
    order = rng.rand(batch, VOCAB).argsort()
    values = logits_by_rank(dtype, order.device)
    wide = values.double()
    masses = wide.exp() * (wide >= _least(wide, keep))
    ends = masses[order].cumsum(1)
    # In the middle half of what one of the four likeliest words has: in doubt is none of them.
    aim = rng.randint(0, 4, batch, 1).long()
    place = (order == aim).int().argmax(1, keepdim=True)
    inside = (0.25 + rng.rand(batch, 1) / 2) * masses[aim]
    uniforms = (ends.gather(1, place) - inside) / ends[:, -1:]
    outputs = (rng.empty(batch, dtype="int32") for _ in range(2))
    return values[order], uniforms[:, 0].float(), *outputs


def _least(row: Any, keep: str) -> Any:
    """Return the least logit that is kept of a row in float64: the largest that is enough."""
    distinct, counts = (each.flip(0) for each in row.unique(return_counts=True))
    if keep == "min_p":
        return distinct[0] + math.log(MIN_P)
    masses = counts * (distinct - distinct[0]).exp()
    amounts, wanted = (counts, TOP_K) if keep == "top_k" else (masses, TOP_P * masses.sum())
    enough = amounts.cumsum(0) >= wanted
    return distinct[(~enough).sum()]


@sampling.reference
def choose(logits: Any, uniforms: Any, *_: Any, keep: str) -> tuple[Any, Any]:
    """Return the token of each row and how many are kept, added up in float64."""
    tokens, counts = [], []
    for row, uniform in zip(logits.double(), uniforms.double(), strict=True):
        masses = (row - row.max()).exp() * (row >= _least(row, keep))
        ends = masses.cumsum(0)
        tokens.append((ends <= uniform * ends[-1]).sum())
        counts.append((masses > 0).sum())
    return torch.stack(tokens).int(), torch.stack(counts).int()


@sampling.wrong
def _place_in_the_sorted_row(*inputs: Any, keep: str) -> tuple[Any, Any]:
    """Return the token's rank, as one does who forgets to look up what was sorted."""
    tokens, counts = _torch(*inputs, keep=keep)
    ranks = (inputs[0] > inputs[0].gather(1, tokens[:, None].long())).sum(1)
    return ranks.int(), counts


@sampling.wrong
def _of_all(logits: Any, uniforms: Any, *_: Any) -> tuple[Any, Any]:
    """Keep all words."""
    return _chosen(logits.float(), uniforms, logits.float().amin(1, keepdim=True))


@sampling.impl
def _torch(logits: Any, uniforms: Any, *_: Any, keep: str) -> tuple[Any, Any]:
    """Filter as vLLM's PyTorch sampler does, in fp32."""
    values = logits.float()
    if keep == "min_p":
        least = values.amax(1, keepdim=True) + math.log(MIN_P)
    else:
        falling = values.sort(1, descending=True).values
        least = falling[:, TOP_K - 1 : TOP_K]
    if keep == "top_p":
        shares = falling.softmax(1)
        before = shares.cumsum(1) - shares
        least = falling.gather(1, (before < TOP_P).sum(1, keepdim=True) - 1)
    return _chosen(values, uniforms, least)


def _chosen(values: Any, uniforms: Any, least: Any) -> tuple[Any, Any]:
    is_left_out = values < least
    ends = values.masked_fill(is_left_out, -math.inf).softmax(1).cumsum(1)
    tokens = torch.searchsorted(ends, uniforms[:, None] * ends[:, -1:], right=True)
    return tokens[:, 0].int(), (~is_left_out).sum(1).int()


@sampling.impl(needs=TRITON, tier="full")
def _compile(ctx: Any, *, keep: str) -> Any:
    return compiled(lambda *inputs: _torch(*inputs, keep=keep))


@sampling.impl(
    needs=TRITON,
    beats=Beats(
        "torch",
        2.0,
        "FlashInfer blog, 'Sorting-Free GPU Kernels for LLM Sampling' (10 March 2025): kernels "
        "without a sort take more than 50 % off vLLM's time for sampling on one H100",
        at={"keep": ("top_k", "top_p"), "batch": (32, 256)},
    ),
)
def _triton(ctx: Any, *, keep: str) -> Any:
    target = {"top_k": TOP_K, "top_p": TOP_P, "min_p": math.log(MIN_P)}[keep]

    def launch(logits: Any, uniforms: Any, tokens: Any, counts: Any) -> None:
        kernels.sample(logits, uniforms, tokens, counts, keep=keep, target=target)

    return launch
