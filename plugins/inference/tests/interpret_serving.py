"""Runs the kernels around a model in Triton's interpreter; prints each error as a JSON line.

Started with TRITON_INTERPRET=1, at sizes that fit no block.
"""

import math

import torch
from kernel_codes import report
from perfsuite_inference import (
    lora,
    lora_triton,
    sampling,
    sampling_triton,
    speculative,
    speculative_triton,
    token_mask,
    token_mask_triton,
)


def samples() -> None:
    """Choose from rows with equal logits, some of which lie where a filter ends."""
    targets = {"top_k": sampling.TOP_K, "top_p": sampling.TOP_P, "min_p": math.log(sampling.MIN_P)}
    for vocab, ties in ((60, 1), (4097, 8), (9000, 128)):
        for keep, target in targets.items():
            logits = (2 * torch.randn(4, vocab)).mul(ties).round().div(ties)
            uniforms = torch.tensor([0.0, 0.31, 0.77, 1 - 2**-24])
            tokens, counts = torch.full((2, 4), -1, dtype=torch.int32)
            sampling_triton.sample(logits, uniforms, tokens, counts, keep=keep, target=target)
            wanted, kept = sampling.choose(logits, uniforms, keep=keep)
            report(f"tokens {keep} {vocab}", tokens, wanted.double())
            report(f"tokens kept by {keep} {vocab}", counts, kept.double())


def masks() -> None:
    """Mask rows of which a program has one, a part, and one and a half."""
    for rows, vocab in ((2, 32), (3, 1024), (2, 6176)):
        logits = torch.randn(rows, vocab)
        words = torch.randint(-(2**31), 2**31, (rows, vocab // 32)).int()
        words[0], words[1] = 0, -1
        wanted = token_mask.apply(logits, words)
        is_right = torch.equal(token_mask_triton.mask(logits, words), wanted)
        report(f"mask {rows} {vocab}", float(not is_right))


def adapters() -> None:
    """Add adapters, of which several rows have one and nobody has another, in part of a block."""
    for width, rank in ((64, 8), (1320, 16)):
        x, base, out = (torch.randn(5, width) for _ in range(3))
        a, b = torch.randn(4, rank, width), torch.randn(4, width, rank)
        given = x, a, b, torch.tensor([2, 0, 2, 3, 2]), base, out
        lora_triton.add(*given)
        report(f"lora {width} {rank}", out, lora.add_rows(*given))


def drafts() -> None:
    """Verify drafts of which a row accepts none, all or some, with vocabularies of odd sizes."""
    for count, vocab in ((3, 100), (5, 5003)):
        target, draft = ((2 * torch.randn(6, n, vocab)).softmax(2) for n in (count + 1, count))
        tokens = torch.randint(0, vocab, (6, count)).int()
        uniforms, last = torch.rand(6, count), torch.rand(6)
        uniforms[0], uniforms[1] = 0.0, 1 - 2**-24
        out = torch.full((6, count + 1), -7, dtype=torch.int32)
        given = target, draft, tokens, uniforms, last
        speculative_triton.verify(*given, out)
        report(f"tokens {count} {vocab}", out, speculative.verify(*given).double())


if __name__ == "__main__":
    torch.manual_seed(1)
    for part in (samples, masks, adapters, drafts):
        part()
