"""Blocks of models with random weights: in eager mode, by Inductor, and what Inductor emits."""

import logging
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from perfsuite import Beats, Metric, Regime, cuda, operator, package
from perfsuite.gpu import TRITON, Later, compiled, torch

EMITTED = [Metric("emitted_kernels"), Metric("emitted_bytes", "bytes")]
HEAD, KV_HEADS, EPSILON = 64, 8, 1e-5
# Of one row or image; then weights: matrices, filters, and vectors of a number a channel. These are
# Llama 3.2 1B, ResNet-18's first stage, Mixtral 8x7B's router, and the MLP of GPT-2.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "llama": ((2048,), (2048,), (2048, 3072), (2048, 2048), (2048,), (2048, 16384), (8192, 2048)),
    "conv": ((64, 56, 56), (64, 64, 3, 3), (64, 1, 1), (64, 64, 3, 3), (64, 1, 1)),
    "router": ((4096,), (4096, 8)),
    "mlp_backward": ((768,), (768,), (768,), (768, 3072), (3072,), (3072, 768)),
}
functional, inductor = Later("torch.nn.functional"), Later("torch._inductor")
PAPER = (
    "PyTorch 2 (ASPLOS 2024): over 180 models on an A100 Inductor is 2.27 times as fast as eager "
    "mode in inference and 1.41 times in training, geometric means"
)


@operator(
    nightly={"block": [*SHAPES], "n": [16, 2048]},
    regime=Regime.END_TO_END,
    cold=False,
    metrics=EMITTED,
    tunes=True,
    needs=[package("torch"), cuda().when(n=2048)],
    work=None,
    # The reference: weights, and four arrays of scores in float64.
    memory_bytes=lambda block, n, impl: (1 << 30) + (block == "llama") * 4 * 8 * 32 * n * n,
    tags=["compile"],
    source=PAPER,
)
def blocks(rng: Any, *, block: str, n: int) -> Any:
    """Run a block of a model with random weights in bf16, for n rows, or n / 16 images.

    ``llama`` is causal attention over the rows, and SwiGLU, each behind a norm. ``conv`` is two
    convolutions, scaled, and added to what they begin from. ``router`` is the weights of two of
    eight experts. ``mlp_backward`` is the gradients of the weights of a layer norm, two products
    and a GELU, forward and backward. ``reduce_overhead`` is Inductor with CUDA graphs,
    ``max_autotune`` the same with kernels chosen by timing. Counted are kernels that Inductor
    writes itself, and the bytes that all kernels read and write.
    """
    shape = SHAPES[block][0]
    return (rng.randn(n // 16 if len(shape) > 1 else n, *shape, dtype="bfloat16"),)


def _weights(block: str, device: Any, seed: int = 1) -> list[Any]:
    """Return the weights, not of the run's seed; vectors are about one."""
    generator = torch.Generator(device).manual_seed(seed)
    made = []
    for shape in SHAPES[block][1:]:
        values = torch.randn(shape, device=device, generator=generator)
        is_vector = max(shape) == prod(shape)
        fan_in = prod(shape[1:]) if len(shape) > 2 else shape[0]  # noqa: PLR2004 - a filter
        values = 1 + values / 10 if is_vector else values / fan_in**0.5
        made.append(torch.nn.Parameter(values.bfloat16()))
    return made


@blocks.reference
def _reference(x: Any, *, block: str) -> Any:
    weights = [each.detach().double().requires_grad_() for each in _weights(block, x.device)]
    return _run(FORWARD[block], x.double(), weights, block)


# The weights are another layer's.
blocks.wrong(lambda x, *, block: _run(FORWARD[block], x, _weights(block, x.device, 2), block))


@blocks.impl(name="eager")
@blocks.impl(
    name="compiled",
    needs=[package("triton")],
    # Of most time there are library kernels, the same in both: less is asked for.
    beats=Beats("eager", 1.0, PAPER, at={"n": 2048}),
)
@blocks.impl(
    name="reduce_overhead",
    needs=TRITON,
    beats=[
        Beats("eager", 2.27, PAPER, at={"block": ("llama", "conv", "router"), "n": 16}),
        Beats("eager", 1.41, PAPER, at={"block": "mlp_backward", "n": 16}, name="training"),
    ],
)
@blocks.impl(
    name="max_autotune",
    needs=TRITON,
    tier="full",
    beats=Beats("reduce_overhead", 0.95, "torch.compile: the fastest of more kernels is chosen"),
)
def _launch(ctx: Any, *, block: str, impl: str) -> Any:
    forward, weights = FORWARD[block], _weights(block, ctx.device)
    if impl != "eager":
        modes = inductor.list_mode_options()
        forward = compiled(forward, **modes.get(impl.replace("_", "-"), {}))
    return lambda x: _run(forward, x, weights, block)


def _run(forward: Callable[..., Any], x: Any, weights: list[Any], block: str) -> Any:
    if block != "mlp_backward":
        with torch.no_grad():
            return forward(x, *weights)
    return torch.autograd.grad(forward(x, *weights), weights, x)


blocks.exact(lambda launch, x, *, impl: emitted(launch, x) if impl == "compiled" else {})


def emitted(launch: Callable[..., Any], *inputs: Any) -> Mapping[str, float]:
    """Compile a launch anew, and count what Inductor emits: kernels, and bytes that they move."""
    from torch._inductor import config, metrics
    from torch._inductor.compile_fx import inductor_metrics_log

    torch.compiler.reset()
    metrics.reset()
    inductor_metrics_log.setLevel(logging.INFO)  # else bytes are not counted
    # What a cache hands out was counted, or not, by whoever put it there.
    with config.patch(fx_graph_cache=False):
        launch(*inputs)
    return {
        "emitted_kernels": metrics.generated_kernel_count,
        "emitted_bytes": metrics.num_bytes_accessed,
    }


def _llama(x: Any, norm: Any, qkv: Any, out: Any, second: Any, up: Any, down: Any) -> Any:
    heads = (functional.rms_norm(x, x.shape[1:], norm, EPSILON) @ qkv).view(len(x), -1, HEAD)
    q, k, v = heads.transpose(0, 1)[None].split([len(out) // HEAD, KV_HEADS, KV_HEADS], 1)
    seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + seen[0].transpose(0, 1).reshape(x.shape) @ out
    gate, wide = (functional.rms_norm(x, x.shape[1:], second, EPSILON) @ up).chunk(2, 1)
    return x + (functional.silu(gate) * wide) @ down


def _conv(x: Any, first: Any, scale: Any, second: Any, rescale: Any) -> Any:
    y = (functional.conv2d(x, first, padding=1) * scale).relu()
    return (functional.conv2d(y, second, padding=1) * rescale + x).relu()


def _router(x: Any, experts: Any) -> Any:
    chosen, _ = (x @ experts).softmax(1).topk(2)
    return chosen / chosen.sum(1, keepdim=True)


def _mlp(x: Any, scale: Any, shift: Any, up: Any, bias: Any, down: Any) -> Any:
    normal = functional.layer_norm(x, x.shape[1:], scale, shift, EPSILON)
    return functional.gelu(normal @ up + bias) @ down


FORWARD: Mapping[str, Callable[..., Any]] = {
    "llama": _llama,
    "conv": _conv,
    "router": _router,
    "mlp_backward": _mlp,
}
