"""A training step that keeps its activations, computes them again, or keeps the dear ones."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import torch

LAYERS = 4
HEAD = 64
# Weights of a layer in squares of the width: queries, keys and values; output; up; down.
SQUARES, MATRICES = 3 + 1 + 4 + 4, 4
EPSILON = 1e-6


def flops(*, width: int, seq: int) -> int:
    """Return what a step must multiply and add: forward, and twice that backward.

    The step's own input needs no gradient. Of the scores and their product with the values the mask
    leaves half.
    """
    forward = LAYERS * (2 * seq * SQUARES * width**2 + 2 * seq**2 * width)
    return 3 * forward - 2 * seq * 3 * width**2


def _memory_bytes(width: int, seq: int, impl: str) -> int:
    # What the reference keeps in float64: about 20 rows of the width a token, and three times the
    # scores; the weights and their gradients in both formats.
    kept = LAYERS * (20 * seq * width + 3 * (width // HEAD) * seq**2)
    return 8 * kept + 20 * LAYERS * SQUARES * width**2


@perfsuite.operator(
    nightly={"width": 1024, "seq": 2048},
    full=[{"width": 1024, "seq": [512, 1024]}, {"width": 64, "seq": 32, "impl": "none"}],
    flops=flops,
    rate_dtype="bf16",
    memory_bytes=_memory_bytes,
    # A bf16 value is off by up to 2^-9, and a gradient goes through some ten of them a layer.
    tolerance=1.6e-2,
    # Checkpoints are Python that runs in the backward pass.
    captures=False,
    metrics=[perfsuite.Metric("executed_flops")],
    tags=["training"],
    source="Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; PyTorch, "
    "torch.utils.checkpoint",
)
def checkpointing(rng: Any, *, width: int, seq: int) -> tuple[Any, ...]:
    """Compute the gradients of a transformer of 4 layers in bf16 for one sequence.

    none keeps every activation; full keeps each layer's input and computes the rest again;
    selective keeps what matrix products and attention returned and computes the rest again.
    """
    layer = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    weights = [rng.randn(*shape) * shape[0] ** -0.5 for shape in LAYERS * layer]
    # Larger than what layers add: else what tokens have in common is most of a gradient, some of
    # whose rows are then so small that a missing tile would not be seen.
    x = 8 * rng.randn(1, seq, width, dtype="bfloat16")
    return x, *(weight.bfloat16().requires_grad_() for weight in weights)


@checkpointing.exact
def _executed(step: Any, *inputs: Any) -> dict[str, float]:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step(*inputs)
    return {"executed_flops": counter.get_total_flops()}


def gradients(layer: Any, x: Any, *weights: Any) -> tuple[Any, ...]:
    """Return the gradients of the mean square of the last layer's output."""
    for index in range(0, len(weights), MATRICES):
        x = layer(x, *weights[index : index + MATRICES])
    loss = (x.double() if x.dtype == torch.float64 else x.float()).square().mean()
    return tuple(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))


def _layer(x: Any, into: Any, out: Any, up: Any, down: Any) -> Any:
    from torch.nn import functional

    batch, seq, width = x.shape
    heads = functional.rms_norm(x, (width,), eps=EPSILON) @ into
    queries, keys, values = heads.view(batch, seq, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    x = x + mixed.transpose(1, 2).reshape(batch, seq, width) @ out
    hidden = functional.rms_norm(x, (width,), eps=EPSILON) @ up
    return x + functional.gelu(hidden, approximate="tanh") @ down


checkpointing.impl(partial(gradients, _layer), name="none")


@checkpointing.impl
def _selective(ctx: Any) -> Any:
    from torch.utils import checkpoint as saving

    choose = partial(saving.create_selective_checkpoint_contexts, _dear())
    layer = partial(saving.checkpoint, _layer, use_reentrant=False, context_fn=choose)
    return partial(gradients, layer)


@checkpointing.impl
def _full(ctx: Any) -> Any:
    from torch.utils import checkpoint as saving

    return partial(gradients, partial(saving.checkpoint, _layer, use_reentrant=False))


def _dear() -> list[Any]:
    """Return the operators whose results cost more to compute again than to keep."""
    kinds = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
    names = ("mm", "addmm", "bmm", *(f"_scaled_dot_product_{kind}" for kind in kinds))
    return [getattr(torch.ops.aten, name).default for name in names]


@checkpointing.reference
def _reference(x: Any, *weights: Any) -> tuple[Any, ...]:
    wide = (weight.detach().double().requires_grad_() for weight in weights)
    return gradients(_plain_layer, x.double(), *wide)


def _plain_layer(x: Any, into: Any, out: Any, up: Any, down: Any) -> Any:
    """Return the layer written out, with softmax and tanh by their formulas."""

    def normed(x: Any) -> Any:
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()

    batch, seq, width = x.shape
    queries, keys, values = (
        part.view(batch, seq, width // HEAD, HEAD).transpose(1, 2)
        for part in (normed(x) @ into).chunk(3, dim=-1)
    )
    scores = queries @ keys.transpose(-1, -2) / HEAD**0.5
    later = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
    shares = scores.masked_fill(later, float("-inf")).softmax(-1)
    x = x + (shares @ values).transpose(1, 2).reshape(batch, seq, width) @ out
    hidden = normed(x) @ up
    inner = (2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)
    return x + (hidden * (1 + inner.tanh()) / 2) @ down


@checkpointing.wrong
def _detached(x: Any, *weights: Any) -> tuple[Any, ...]:
    """Lose the gradients below the last layer: its input was saved without where it came from."""

    def layer(x: Any, *weights: Any) -> Any:
        return _layer(x.detach(), *weights)

    return gradients(layer, x, *weights)
