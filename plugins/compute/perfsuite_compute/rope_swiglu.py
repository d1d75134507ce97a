"""Two fusions of every transformer layer: rotary embedding, and SwiGLU's gate."""

from typing import Any

from perfsuite import KERNELS, Beats, Work, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

D, GROUP = 128, 4
_ROPED: dict[str, Any] = {"dtype": "bf16", "op": "rope", "width": 4096}
_MLP: dict[str, Any] = {"dtype": "bf16", "op": "swiglu", "tokens": 8192, "width": 14336}
_ROPE = Beats(
    "eager",
    5.0,
    "Liger Kernel (arXiv:2410.10989), RoPE against Hugging Face's: about 8 times less "
    "time; counted, 10 trips of each element against 2, a ratio of 5",
    at={"op": "rope", "tokens": 8192},
    name="rope_fused",
)
_SWIGLU = Beats(
    "eager",
    1.3,
    "counted as in H. He, Making Deep Learning Go Brrrr From First Principles: two "
    "kernels move each element 5 times, one 3 times, a ratio of 1.67",
    at={"op": "swiglu", "tokens": 8192},
    name="swiglu_fused",
)


def _work(dtype: str, op: str, tokens: int, width: int, impl: str) -> Work:
    size = 2 if dtype == "bf16" else 4
    if op == "swiglu":
        return Work(2 * tokens * width * size, tokens * width * size)
    rotated = tokens * (width + width // GROUP) * size
    # An angle for each pair of a head: d/2 cosines and d/2 sines a token.
    return Work(rotated + tokens * D * size, rotated)


@operator(
    # Llama-3-8B: 32 heads and 8 of keys, 128 wide; 14,336 columns between the halves of its MLP.
    nightly=[
        {**_ROPED, "tokens": 8192, "impl": ["eager", "compile", "triton"]},
        {**_ROPED, "tokens": 8191, "impl": "triton"},
        {**_MLP, "impl": ["eager", "triton", "liger"]},
        {"dtype": "bf16", "op": "swiglu", "tokens": 8191, "width": 14335, "impl": "triton"},
    ],
    full=[
        {**_MLP, "impl": "compile"},
        {"dtype": "fp32", "op": ["rope", "swiglu"], "tokens": 64, "width": 1024, "impl": "eager"},
    ],
    needs=[cuda().when(dtype="bf16")],
    work=_work,
    # Two inputs, two outputs and three temporaries, and float64 of the inputs and the result.
    memory_bytes=lambda tokens, width, **_: 60 * tokens * width,
    metrics=[KERNELS],
    tags=["fusion"],
    source="kernel fusion: chapter 8 of the book; Liger Kernel (arXiv:2410.10989), section 3.2",
)
def rope_swiglu(rng: Any, *, dtype: str, op: str, tokens: int, width: int) -> Any:
    """Rotate queries and keys by their position, or take silu(gate) * up.

    ``width`` is that of all query heads, a quarter of which are keys, or of the MLP's middle.
    ``eager`` is transformers' code: ``rotate_half`` is a negation and a concatenation, and each
    product and sum a kernel of its own; SwiGLU is two. ``compile`` is the same through
    torch.compile, ``triton`` one kernel by hand, which reads a token's angles once for all heads.
    ``liger`` is that package's SwiGLU, where it is installed.
    """
    name = DTYPES[dtype]
    if op == "swiglu":
        gate, up = (rng.randn(tokens, width, dtype=name) for _ in range(2))
        return gate, up, rng.empty(tokens, width, dtype=name)
    shapes = (tokens, width // D, D), (tokens, width // D // GROUP, D)
    q, k = (rng.randn(*shape, dtype=name) for shape in shapes)
    speed = 1e4 ** (-torch.arange(0, D, 2, device=q.device) / D)
    angles = torch.outer(torch.arange(tokens, device=q.device), speed).repeat(1, 2)
    out = (rng.empty(*shape, dtype=name) for shape in shapes)
    return q, k, angles.cos().to(q.dtype), angles.sin().to(q.dtype), *out


@rope_swiglu.reference
def _reference(*inputs: Any, op: str) -> Any:
    """Multiply each pair, as a complex number in float64, by its angle's; or gate in float64."""
    wide = [each.double() for each in inputs[:4]]
    if op == "swiglu":
        gate, up, _ = wide
        return gate / (1 + (-gate).exp()) * up
    *rotated, cos, sin = wide
    turn = torch.complex(cos, sin)[:, None, : D // 2]
    parts = [torch.complex(*each.chunk(2, dim=-1)) * turn for each in rotated]
    return tuple(torch.cat((part.real, part.imag), dim=-1) for part in parts)


@rope_swiglu.wrong
def _mixed_up(*inputs: Any, op: str) -> Any:
    """Take the pairs of one convention with the angles of the other, a common mix-up."""
    if op == "swiglu":
        return inputs[0].sigmoid() * inputs[1]
    return _rotate(*inputs[:4], half=_rotate_neighbours)


def _rotate_half(x: Any) -> Any:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def _rotate_neighbours(x: Any) -> Any:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def _rotate(q: Any, k: Any, cos: Any, sin: Any, *, half: Any = _rotate_half) -> tuple[Any, Any]:
    cos, sin = cos[:, None], sin[:, None]
    return (q * cos) + (half(q) * sin), (k * cos) + (half(k) * sin)


@rope_swiglu.impl
def _eager(*inputs: Any, op: str) -> Any:
    if op == "rope":
        return _rotate(*inputs[:4])
    return torch.nn.functional.silu(inputs[0]) * inputs[1]


@rope_swiglu.impl(needs=TRITON, beats=_ROPE)
def _compile(ctx: Any, *, op: str) -> Any:
    return compiled(lambda *inputs: _eager(*inputs, op=op))


@rope_swiglu.impl(needs=TRITON, beats=[_ROPE, _SWIGLU])
def _triton(ctx: Any, *, op: str) -> Any:
    return getattr(Later("perfsuite_compute.rope_swiglu_triton"), op)


@rope_swiglu.impl(needs=[*TRITON, package("liger_kernel")])
def _liger(ctx: Any) -> Any:
    swiglu = Later("liger_kernel.transformers.functional").liger_swiglu
    return lambda gate, up, _: swiglu(gate, up)
