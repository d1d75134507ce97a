"""Words that a grammar forbids, struck out of logits: one bit a word, in place."""

import math
from typing import Any

from perfsuite import Beats, Work, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, torch
from perfsuite_inference.sampling import VOCAB

kernels = Later("perfsuite_inference.token_mask_triton")
xgrammar = Later("xgrammar")
# Of the words of a row so many are allowed, one behind the other, and of the others one in 32.
RUN = VOCAB // 4


@operator(
    smoke={"dtype": "fp32", "batch": 2, "impl": "torch"},
    nightly={"dtype": "bf16", "batch": [32, 256]},
    full={"dtype": "fp32", "batch": 32},
    needs=[cuda().when(dtype="bf16")],
    # A bit is read for each word, and minus infinity written in place of three quarters of them.
    work=lambda dtype, batch, impl: Work(
        batch * VOCAB / 8, batch * (VOCAB - RUN) * 31 / 32 * (2 if dtype == "bf16" else 4)
    ),
    tolerance=0.0,
    in_place=True,  # what is struck out stays so
    tags=["sampling", "grammar", "decode"],
    source="XGrammar (arXiv:2411.15100), apply_token_bitmask_inplace; Llama-3-8B's model card",
)
def token_mask(rng: Any, *, dtype: str, batch: int) -> tuple[Any, ...]:
    """Write minus infinity over the logits whose bit is zero, 32 of them an int32, lowest first.

    A quarter of a row's words is allowed in one run, as is free text in a string, and of the
    others one in 32. ``torch`` unpacks the bits and fills, which writes and reads an int32 a word.
    ``triton`` reads the logits of a byte of bits only where these are neither all zero nor all one.
    """
    logits = rng.randn(batch, VOCAB, dtype=DTYPES[dtype])
    starts = rng.randint(0, VOCAB, batch, 1)
    places = torch.arange(VOCAB, dtype=torch.int32, device=logits.device)
    is_allowed = ((places - starts) % VOCAB < RUN) | (rng.randint(0, 32, batch, VOCAB) == 0)
    return logits, (is_allowed.view(batch, -1, 32) << places[:32]).sum(2).int()


@token_mask.reference
def apply(logits: Any, words: Any) -> Any:
    """Return the masked logits, of bits that are divided out, not shifted."""
    powers = 2 ** torch.arange(32, device=words.device)
    bits = words.long()[..., None] // powers % 2
    return torch.where(bits.flatten(1) == 1, logits, -math.inf)


@token_mask.wrong
def _highest_first(logits: Any, words: Any) -> Any:
    """Take the bits of a word from the highest on."""
    return logits.masked_fill(_forbidden(words).view(-1, 32).flip(1).view_as(logits), -math.inf)


@token_mask.wrong
def _without_the_sign(logits: Any, words: Any) -> Any:
    """Leave out the highest bit, as where the words are taken for positive numbers."""
    return logits.masked_fill(_forbidden(words & 0x7FFFFFFF), -math.inf)


def _forbidden(words: Any) -> Any:
    places = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> places) & 1).flatten(1) == 0


@token_mask.impl
def _torch(logits: Any, words: Any) -> Any:
    return logits.masked_fill_(_forbidden(words), -math.inf)


@token_mask.impl(
    needs=TRITON,
    beats=Beats(
        "torch",
        2.5,
        "counted: a word of bf16 costs an int32 written and read twice (shifted, then masked), a "
        "byte twice and a logit twice, 22 bytes, where 2 to 4 are needed",
        at={"dtype": "bf16", "batch": 256},
    ),
)
def _triton(ctx: Any) -> Any:
    return kernels.mask


@token_mask.impl(needs=[cuda(), package("xgrammar")])
def _xgrammar(logits: Any, words: Any) -> Any:
    xgrammar.apply_token_bitmask_inplace(logits, words)
    return logits
