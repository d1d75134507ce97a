"""A whole mixture of experts in fp8, from the router's logits to the sum of what experts say."""

from typing import Any, NamedTuple

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later, torch
from perfsuite_compute import fp8_block
from perfsuite_compute.fp8_block import BLOCK

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


def _memory_bytes(model: str, **_: Any) -> int:
    experts, _top, width, inner = MODELS[model]
    # Weights are drawn in bf16 and quantised in fp32; the rest is much less.
    return 50 * experts * width * inner


@operator(
    smoke={"model": "deepseek-v2-lite", "tokens": 64, "impl": "triton"},
    nightly=[
        {"model": "deepseek-v2-lite", "tokens": [64, 4096]},
        {"model": "mixtral-8x7b", "tokens": 1024},
    ],
    full={"model": ["tiny", "mixtral-8x7b"], "tokens": 64},
    work=_work,
    memory_bytes=_memory_bytes,
    # In bf16 both products, the gate's, scales and sums round, by 0.2 % each. Before e4m3 the gate,
    # what it scales and the largest of 128 do: a thirtieth of the codes is off by a twelfth, 1.5 %.
    tolerance=lambda *, impl: 1e-2 if impl == "eager" else 3e-2,
    tags=["fp8", "mixture-of-experts", "quantisation"],
    source="vllm-project/vllm#4509: a token of a mixture in fp8 takes 40 ms in place of 12",
)
def moe_fp8(rng: Any, *, model: str, tokens: int) -> Any:
    """Route tokens to the ``top`` experts of each, and add what their SwiGLU layers say.

    Weights are e4m3 with a scale for each 128 x 128. Tokens, and what stands between the two
    products, are e4m3 with a scale for each 128 numbers of a row. ``eager`` is what models write:
    expert by expert, its tokens found by the host, its weights turned into bf16; tokens stay in
    that. ``triton`` numbers the tokens of each expert, copies them there in e4m3, multiplies with
    ``fp8_grouped_gemm``'s kernel, and adds the rows of each token. ``vllm`` is its fused_experts,
    where it is installed. torch's softmax and top-k route in all. Neighbouring blocks differ in
    size by 2 to 16, so that another's scale shows.
    """
    experts, _, width, inner = MODELS[model]
    x = rng.randn(tokens, width, dtype="bfloat16")
    _uneven(x.view(tokens, 1, -1, BLOCK))
    given: list[Any] = []
    for shape in ((experts, 2 * inner, width), (experts, width, inner)):
        w = rng.randn(*shape, dtype="bfloat16").mul_(shape[-1] ** -0.5)
        _uneven(w.view(-1, BLOCK, shape[-1] // BLOCK, BLOCK))
        given += fp8_block.quantise(w, BLOCK)
    # A rank and a part: no two are the same, which routers could tell apart in their own ways.
    logits = (rng.rand(tokens, experts).argsort(1) + rng.rand(tokens, experts) / 2) / 4
    return x, logits, *given, rng.empty(tokens, width, dtype="bfloat16")


def _uneven(blocks: Any) -> None:
    """Multiply blocks [rows, m, columns, k] by powers of two, none as its neighbours'."""
    row, column = (torch.arange(blocks.shape[axis], device=blocks.device) for axis in (0, 2))
    blocks *= torch.exp2((row[:, None] + 2 * column) % 5 - 3.0)[:, None, :, None]


@moe_fp8.reference
def _reference(
    x: Any, logits: Any, w1: Any, w1_scale: Any, w2: Any, w2_scale: Any, out: Any, *, model: str,
    impl: str, **_: Any,
) -> Any:  # fmt: skip
    """Do so in float64, expert by expert, with routing of its own and what codes stand for."""
    experts, top = MODELS[model][:2]
    wide = logits.double()
    least = wide.sort(1).values[:, -top, None]
    shares = torch.where(wide >= least, wide.exp(), 0.0)
    shares /= shares.sum(1, keepdim=True)
    block = torch.ones(BLOCK, BLOCK, dtype=torch.float64, device=x.device)
    tokens, sums = _kept(x.double(), impl), torch.zeros_like(x, dtype=torch.float64)
    for expert in range(experts):
        first, last = (
            (torch.kron(scale[expert].double(), block) * w[expert].double()).t()
            for w, scale in ((w1, w1_scale), (w2, w2_scale))
        )
        own = shares[:, expert].nonzero()[:, 0]
        inner = tokens[own] @ first
        gate, up = inner[:, : len(last)], inner[:, len(last) :]
        said = _kept(gate / (1 + (-gate).exp()) * up, impl) @ last
        sums[own] += shares[own, expert, None] * said
    return sums


def _kept(rows: Any, impl: str) -> Any:
    """Return what is left of rows in e4m3 with a scale for each 128 numbers; of eager's, all."""
    if impl == "eager":
        return rows
    groups = rows.unflatten(1, (-1, BLOCK))
    step = groups.abs().amax(2, keepdim=True) / 448
    return ((groups / step).to(torch.float8_e4m3fn).double() * step).flatten(1)


@moe_fp8.wrong
def _of_the_next(x: Any, logits: Any, *rest: Any, **axes: Any) -> Any:
    """Send each token to the experts after its own."""
    return _reference(x, logits.roll(1, 1), *rest, **axes).bfloat16()


@moe_fp8.wrong
def _shares_of_more(x: Any, logits: Any, *rest: Any, **axes: Any) -> Any:
    """Share as if logits were four times as large."""
    return _reference(x, logits * 4, *rest, **axes).bfloat16()


@moe_fp8.wrong
def _scales_of_the_block_before(*given: Any, **axes: Any) -> Any:
    """Scale the first weights of each block by the block before it in k."""
    x, logits, w1, w1_scale, *rest = given
    return _reference(x, logits, w1, w1_scale.roll(1, 2), *rest, **axes).bfloat16()


@moe_fp8.wrong
def _scales_of_the_rows_before(*given: Any, **axes: Any) -> Any:
    """Scale the last weights of each block by the block of rows before it."""
    *rest, w2_scale, out = given
    return _reference(*rest, w2_scale.roll(1, 1), out, **axes).bfloat16()


def _routed(logits: Any, top: int) -> tuple[Any, Any]:
    """Return the experts of each token, [tokens, top], and their shares, which add up to 1."""
    found = logits.topk(top, dim=1)
    return found.indices, found.values.softmax(1)


@moe_fp8.impl
def _eager(
    x: Any, logits: Any, w1: Any, w1_scale: Any, w2: Any, w2_scale: Any, out: Any, *, model: str
) -> None:
    ids, shares = _routed(logits, MODELS[model].top)
    out.zero_()
    for expert in range(MODELS[model].experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        if len(token):
            gate, up = (x[token] @ _in_bf16(w1[expert], w1_scale[expert]).t()).chunk(2, dim=1)
            hidden = torch.nn.functional.silu(gate) * up
            said = hidden @ _in_bf16(w2[expert], w2_scale[expert]).t()
            out.index_add_(0, token, (said * shares[token, slot, None]).to(out.dtype))


def _in_bf16(w: Any, scale: Any) -> Any:
    blocks = w.to(torch.bfloat16).unflatten(0, (-1, BLOCK)).unflatten(-1, (-1, BLOCK))
    return (blocks * scale[:, None, :, None].bfloat16()).flatten(-2).flatten(0, 1)


@moe_fp8.impl(
    needs=fp8_block.TRITON,
    beats=Beats(
        "eager",
        1.4,
        "PyTorch blog, 'Accelerating MoE's with a Triton Persistent Cache-Aware Grouped GEMM "
        "Kernel': 1.42 to 2.62 times a loop over the experts, in bf16, DeepSeek-V3 16B on H100",
        at={"model": "mixtral-8x7b", "tokens": 1024},
        needs=(arch("sm_90"),),
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
        how = config.fp8_w8a8_moe_quant_config(w1_scale, w2_scale, block_shape=[BLOCK, BLOCK])
        return layer.fused_experts(x, w1, w2, shares, ids.to(torch.int32), quant_config=how)

    return launch
