"""Reading a prompt: attention as it is written down against one fused kernel."""

import math
from functools import partial
from typing import Any

from perfsuite import Claim, Work, Workload, case, cuda, package
from perfsuite.gpu import torch
from perfsuite_inference import reference
from perfsuite_inference.cache import StaticCache
from perfsuite_inference.model import SHAPES, TOLERANCES, Llama, attend_fused

_IMPLS = ["eager", "flash"]


def _work(size: str, batch: int, length: int, impl: str) -> Work:
    s = SHAPES[size]
    pairs = length * (length + 1) // 2
    each = 2 * s.layers * s.layer_weights * length + 4 * s.layers * s.heads * s.head * pairs
    return Work(
        read_bytes=s.item_bytes * s.weights,
        write_bytes=s.item_bytes * batch * (length * s.kv_elements + s.vocab),
        flops=batch * (each + 2 * s.hidden * s.vocab),
        rate_dtype=s.dtype,
    )


def _memory_bytes(size: str, batch: int, length: int, impl: str) -> int:
    s = SHAPES[size]
    tokens = batch * length * (s.kv_elements + 6 * s.mlp + 8 * s.hidden) * s.item_bytes
    # Scores, their mask, softmax and the fp32 in between, of one layer.
    scores = 12 * batch * s.heads * length * length if impl == "eager" else 0
    spare = 8 * s.hidden * s.vocab + (4 << 30 if size != "tiny" else 1 << 28)
    return s.weight_bytes + tokens + scores + spare


@case(
    smoke={"size": "tiny", "batch": 1, "length": 255, "impl": _IMPLS},
    nightly={"size": "1b", "batch": 1, "length": [512, 2048], "impl": _IMPLS},
    full={"size": ["1b", "8b"], "batch": 1, "length": [512, 2048, 4096], "impl": _IMPLS},
    needs=(package("torch"), cuda().when(size=("1b", "8b"))),
    work=_work,
    memory_bytes=_memory_bytes,
    cold=False,
    tags=["prefill", "attention"],
    source="chapters 8 and 10 of the book; FlashAttention-2 (arXiv:2307.08691)",
)
def prefill(ctx: Any, size: str, batch: int, length: int, impl: str) -> Workload:
    """Read a prompt into a static cache and return the logits after it.

    ``eager`` is attention as it is written down: keys and values repeated for the heads that share
    them, s x s scores in memory, a mask, a softmax, a product. ``flash`` is torch's fused kernel.
    All else is equal. The work is two operations for each weight of the layers and each token, four
    for each pair of query and key that is seen, and the head for the last token only.
    """
    model = Llama(SHAPES[size], ctx.device)
    cache = StaticCache(model.shape, batch, length, model.device)
    attention = attend_written if impl == "eager" else attend_fused
    # See the whole prompt from everywhere, as without a causal mask.
    attend_all = partial(attend_fused, is_causal=False)

    return Workload(
        fn=lambda tokens: model.prefill(tokens, cache, attention=attention),
        make_inputs=lambda rng: (rng.randint(0, model.shape.vocab, batch, length, dtype="int64"),),
        reference=lambda tokens: reference.logits_last(model, list(tokens)),
        wrong=lambda tokens: model.prefill(tokens, cache, attention=attend_all),
        tolerance=TOLERANCES[model.shape.dtype],
    )


def attend_written(q: Any, k: Any, v: Any) -> Any:
    """Attend causally by the formula: q [b, heads, s, d], k and v [b, kv_heads, s, d]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(later, -math.inf)
    return scores.float().softmax(dim=-1).to(q.dtype) @ v


FLASH = Claim(
    name="prefill_flash",
    case="prefill",
    faster={"impl": "flash"},
    than={"impl": "eager"},
    by=2.0,
    at={"size": ("1b",), "length": (2048, 4096)},
    # 2 (written), 2 + 2 (scaled), 2 + 2 (masked), 2 + 4 (to fp32), 4 + 4 (softmax), 4 + 2 (to bf16)
    # and 2 (read) bytes of each of 16 x 32 x 4096 x 4096 scores, 0.27 TB, take 57 ms at an H200's
    # 4.8 TB/s. All operations of the launch, 9e12, take 9 ms at its 989 TFLOP/s.
    source="counted: written out, 32 bytes are moved for each score, on an H200 6 times as long as "
    "all operations take by the datasheet; twice as fast is asked for",
)
