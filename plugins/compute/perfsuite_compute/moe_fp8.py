"""A whole mixture of experts in fp8, from the router's logits to the sum of what experts say."""

from typing import Any, NamedTuple

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later, torch
from perfsuite_compute import fp8_block

kernels = Later("perfsuite_compute.moe_fp8_triton")


class Model(NamedTuple):
    """How many experts there are and answer, the width of a token, and that inside an expert."""

    experts: int
    top: int
    width: int
    inner: int


MODELS = {
    "tiny": Model(4, 2, 256, 128),
    "deepseek-v2-lite": Model(64, 6, 2048, 1408),
    "mixtral-8x7b": Model(8, 2, 4096, 14336),
}


def _work(model: str, tokens: int, **_: Any) -> Work:
    experts, top, width, inner = MODELS[model]
    used = min(experts, tokens * top)  # experts whose weights are read, if tokens spread
    read = 2 * tokens * width + 4 * tokens * experts + used * 3 * width * inner
    return Work(read, 2 * tokens * width, 6 * tokens * top * width * inner, rate_dtype="fp8")


def _memory_bytes(model: str, tokens: int, **_: Any) -> int:
    experts, top, width, inner = MODELS[model]
    rows = tokens * top + 128 * experts
    # Weights are drawn in bf16 and quantised in fp32; the reference has one expert in float64.
    held = 13 * experts * 3 * width * inner + rows * (3 * width + 5 * inner)
    return held + 17 * 3 * width * inner + 24 * tokens * (width + top * inner)


@operator(
    smoke={"model": "deepseek-v2-lite", "tokens": 64, "impl": "triton"},
    nightly=[
        {"model": "deepseek-v2-lite", "tokens": [64, 4096]},
        {"model": "mixtral-8x7b", "tokens": 1024},
    ],
    full=[{"model": "tiny", "tokens": 64}, {"model": "mixtral-8x7b", "tokens": 64}],
    work=_work,
    memory_bytes=_memory_bytes,
    # e4m3 keeps 4 bits of an activation, twice.
    tolerance=6e-2,
    tags=["fp8", "mixture-of-experts", "quantisation"],
    source="vllm-project/vllm#4509: a token of a mixture in fp8 takes 40 ms in place of 12",
)
def moe_fp8(rng: Any, *, model: str, tokens: int) -> Any:
    """Route tokens to the ``top`` experts of each, and add what their SwiGLU layers say.

    Weights are e4m3 with a scale for each 128 x 128. ``eager`` is what models write: expert by
    expert, its tokens found by the host, its weights turned into bf16. ``triton`` numbers the
    tokens of each expert, copies them there in e4m3, multiplies with ``fp8_grouped_gemm``'s
    kernel, and adds the rows of each token. ``vllm`` is its fused_experts, where it is installed.
    torch's softmax and top-k route in all.
    """
    experts, _, width, inner = MODELS[model]
    x = rng.randn(tokens, width, dtype="bfloat16")
    given: list[Any] = []
    for shape in ((experts, 2 * inner, width), (experts, width, inner)):
        w = rng.randn(*shape, dtype="bfloat16").mul_(shape[-1] ** -0.5)
        given += fp8_block.quantise(w, fp8_block.BLOCK)
    return x, rng.randn(tokens, experts), *given, rng.empty(tokens, width, dtype="bfloat16")


def _routed(logits: Any, top: int) -> tuple[Any, Any]:
    """Return the experts of each token, [tokens, top], and their shares, which add up to 1."""
    found = logits.topk(top, dim=1)
    return found.indices, found.values.softmax(1)


def _by_experts(x: Any, logits: Any, weights: Any, out: Any, model: str) -> Any:
    """Add to ``out`` expert by expert; ``weights(expert)`` returns both of its matrices."""
    ids, shares = _routed(logits, MODELS[model].top)
    for expert in range(MODELS[model].experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        if len(token):
            w1, w2 = weights(expert)
            gate, up = (x[token] @ w1.t()).chunk(2, dim=1)
            said = (torch.nn.functional.silu(gate) * up) @ w2.t()
            out.index_add_(0, token, (said * shares[token, slot, None]).to(out.dtype))
    return out


@moe_fp8.reference
def _reference(
    x: Any, logits: Any, w1: Any, w1_scale: Any, w2: Any, w2_scale: Any, out: Any, *, model: str
) -> Any:
    """Do so in float64, with what the codes of weights stand for."""

    def weights(expert: int) -> tuple[Any, ...]:
        each = (w1[expert], w1_scale[expert]), (w2[expert], w2_scale[expert])
        return tuple(fp8_block.dequantise(*of, fp8_block.BLOCK) for of in each)

    zeros = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    return _by_experts(x.double(), logits, weights, zeros, model)


@moe_fp8.wrong
def _of_the_next(x: Any, logits: Any, *rest: Any, model: str) -> Any:
    """Send each token to the experts after its own."""
    return _reference(x, logits.roll(1, 1), *rest, model=model).bfloat16()


@moe_fp8.wrong
def _shares_of_the_last(x: Any, logits: Any, *rest: Any, model: str) -> Any:
    """Take the shares of the token before."""
    ids, shares = _routed(logits, MODELS[model].top)
    late = torch.full_like(logits, -1e9).scatter_(1, ids, shares.roll(1, 0).log())
    return _reference(x, late, *rest, model=model).bfloat16()


@moe_fp8.impl
def _eager(
    x: Any, logits: Any, w1: Any, w1_scale: Any, w2: Any, w2_scale: Any, out: Any, *, model: str
) -> None:
    def weights(expert: int) -> tuple[Any, ...]:
        each = (w1[expert], w1_scale[expert]), (w2[expert], w2_scale[expert])
        return tuple(_in_bf16(*of) for of in each)

    _by_experts(x, logits, weights, out.zero_(), model)


def _in_bf16(w: Any, scale: Any) -> Any:
    blocks = w.to(torch.bfloat16).unflatten(0, (-1, fp8_block.BLOCK)).unflatten(-1, (-1, 128))
    return (blocks * scale[:, None, :, None].bfloat16()).flatten(-2).flatten(0, 1)


@moe_fp8.impl(
    needs=fp8_block.TRITON,
    beats=Beats(
        "eager",
        1.4,
        "PyTorch blog, 'Accelerating MoE's with a Triton Persistent Cache-Aware Grouped GEMM "
        "Kernel': 1.42 to 2.62 times a loop over the experts, in bf16, DeepSeek-V3 16B on H100",
        at={"model": "mixtral-8x7b", "tokens": 1024},
        needs=(cuda(), arch("sm_90")),
    ),
)
def _triton(ctx: Any, *, model: str, tokens: int) -> Any:
    experts, top, width, inner = MODELS[model]
    run = kernels.launch(tokens, top, (experts, width, inner), ctx.place)

    def launch(x: Any, logits: Any, *rest: Any) -> None:
        ids, shares = _routed(logits, top)
        run(x, ids, shares, *rest)

    return launch


@moe_fp8.impl(needs=[cuda(), arch("sm_90+"), package("vllm")])
def _vllm(ctx: Any, *, model: str) -> Any:
    config, layer = (
        Later(f"vllm.model_executor.layers.fused_moe.{name}") for name in ("config", "fused_moe")
    )

    def launch(x: Any, logits: Any, w1: Any, w1_scale: Any, w2: Any, w2_scale: Any, _: Any) -> Any:
        ids, shares = _routed(logits, MODELS[model].top)
        block = [fp8_block.BLOCK, fp8_block.BLOCK]
        how = config.fp8_w8a8_moe_quant_config(w1_scale, w2_scale, block_shape=block)
        return layer.fused_experts(x, w1, w2, shares, ids.to(torch.int32), quant_config=how)

    return launch
