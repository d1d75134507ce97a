"""Two fusions of every transformer layer: rotary embedding, and SwiGLU's gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, cuda, package
from perfsuite_compute.counting import kernels_of

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
# Llama-3-8B: 32 heads and 8 of keys, 128 wide; 14,336 columns between the two halves of its MLP.
D, GROUP = 128, 4
ROPE_WIDTH, SWIGLU_WIDTH, ODD_WIDTH = 4096, 14336, 14335
TOKENS, ODD_TOKENS, _FEW = 8192, 8191, 64
_ASKED = {
    ("rope", TOKENS, ROPE_WIDTH),
    ("rope", ODD_TOKENS, ROPE_WIDTH),
    ("rope", _FEW, 1024),
    ("swiglu", TOKENS, SWIGLU_WIDTH),
    ("swiglu", ODD_TOKENS, ODD_WIDTH),
    ("swiglu", _FEW, 1024),
}


def _is_asked(dtype: str, op: str, tokens: int, width: int, impl: str) -> bool:
    return (op, tokens, width) in _ASKED and (tokens != ODD_TOKENS or impl == "triton")


def _work(dtype: str, op: str, tokens: int, width: int, impl: str) -> Work:
    size = _DTYPES[dtype][1]
    if op == "swiglu":
        return Work(read_bytes=2 * tokens * width * size, write_bytes=tokens * width * size)
    rotated = tokens * (width + width // GROUP) * size
    # An angle for each pair of a head: d/2 cosines and d/2 sines a token.
    return Work(read_bytes=rotated + tokens * D * size, write_bytes=rotated)


def _memory_bytes(dtype: str, op: str, tokens: int, width: int, impl: str) -> int:
    # Two inputs, two outputs and three temporaries, and float64 of the inputs and the result.
    return tokens * width * (7 * _DTYPES[dtype][1] + 4 * 8)


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "op": ["rope", "swiglu"],
        "tokens": [ODD_TOKENS, TOKENS],
        "width": [ROPE_WIDTH, ODD_WIDTH, SWIGLU_WIDTH],
        "impl": ["eager", "compile", "triton"],
    },
    smoke={"dtype": ["fp32"], "tokens": [_FEW], "width": [1024], "impl": ["eager"]},
    only=_is_asked,
    full_only=[{"tokens": [_FEW]}, {"op": ["swiglu"], "impl": ["compile"]}],
    needs=(
        package("torch"),
        package("triton").when(impl=("compile", "triton")),
        cuda().when(impl=("compile", "triton")),
        cuda().when(dtype="bf16"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    metrics=[perfsuite.KERNELS],
    tags=["fusion"],
    source="kernel fusion: chapter 8 of the book; Liger Kernel (arXiv:2410.10989), section 3.2",
)
def rope_swiglu(ctx: Any, dtype: str, op: str, tokens: int, width: int, impl: str) -> Workload:
    """Rotate queries and keys by their position, or take silu(gate) * up.

    ``width`` is that of all query heads, a quarter of which are keys, or of the MLP's middle.
    ``eager`` is transformers' code: ``rotate_half`` is a negation and a concatenation, and each
    product and sum a kernel of its own; SwiGLU is two. ``compile`` is the same through
    torch.compile, ``triton`` one kernel by hand, which reads a token's angles once for all heads.
    """
    make_inputs = _inputs_of(_DTYPES[dtype][0], op, tokens, width)
    launch = (_launch_rope if op == "rope" else _launch_swiglu)(impl)
    exact = kernels_of(ctx, launch, make_inputs)
    if op == "rope":
        return Workload(
            fn=launch,
            make_inputs=make_inputs,
            reference=_rotate_as_complex,
            # The pairs of one convention with the angles of the other, a common mix-up.
            wrong=lambda *inputs: _rotate(*inputs[:4], half=_rotate_neighbours),
            exact=exact,
        )
    return Workload(
        fn=launch,
        make_inputs=make_inputs,
        reference=lambda gate, up, out: gate.double() / (1 + (-gate.double()).exp()) * up.double(),
        wrong=lambda gate, up, out: gate.sigmoid() * up,
        exact=exact,
    )


def _inputs_of(name: str, op: str, tokens: int, width: int) -> Callable[[Any], tuple[Any, ...]]:
    def swiglu(rng: Any) -> tuple[Any, ...]:
        given = (rng.randn(tokens, width, dtype=name) for _ in range(2))
        return *given, rng.empty(tokens, width, dtype=name)

    def rope(rng: Any) -> tuple[Any, ...]:
        import torch

        shapes = (tokens, width // D, D), (tokens, width // D // GROUP, D)
        q, k = (rng.randn(*shape, dtype=name) for shape in shapes)
        speed = 1e4 ** (-torch.arange(0, D, 2, device=q.device) / D)
        angles = torch.outer(torch.arange(tokens, device=q.device), speed).repeat(1, 2)
        out = (rng.empty(*shape, dtype=name) for shape in shapes)
        return q, k, angles.cos().to(q.dtype), angles.sin().to(q.dtype), *out

    return {"rope": rope, "swiglu": swiglu}[op]


def _rotate_half(x: Any) -> Any:
    import torch

    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def _rotate_neighbours(x: Any) -> Any:
    import torch

    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def _rotate(
    q: Any, k: Any, cos: Any, sin: Any, *, half: Callable[[Any], Any] = _rotate_half
) -> tuple[Any, Any]:
    cos, sin = cos[:, None], sin[:, None]
    return (q * cos) + (half(q) * sin), (k * cos) + (half(k) * sin)


def _gate(gate: Any, up: Any) -> Any:
    from torch.nn import functional

    return functional.silu(gate) * up


def _launch_rope(impl: str) -> Callable[..., Any]:
    if impl == "triton":
        from perfsuite_compute.rope_swiglu_triton import rope

        return rope
    run = _of(impl, _rotate)
    return lambda q, k, cos, sin, q_out, k_out: run(q, k, cos, sin)


def _launch_swiglu(impl: str) -> Callable[..., Any]:
    if impl == "triton":
        from perfsuite_compute.rope_swiglu_triton import swiglu

        return swiglu
    run = _of(impl, _gate)
    return lambda gate, up, out: run(gate, up)


def _of(impl: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    if impl == "eager":
        return fn
    from perfsuite_compute.compiling import compiled

    return compiled(fn)


def _rotate_as_complex(q: Any, k: Any, cos: Any, sin: Any, *outputs: Any) -> tuple[Any, Any]:
    """Multiply each pair, as a complex number in float64, by its angle's."""
    import torch

    half = D // 2
    turn = torch.complex(cos[:, None, :half].double(), sin[:, None, :half].double())

    def turned(x: Any) -> Any:
        wide = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
        return torch.cat((wide.real, wide.imag), dim=-1)

    return turned(q), turned(k)


CASES: tuple[perfsuite.Case | Claim, ...] = (
    rope_swiglu,
    *(
        Claim(
            name=f"rope_fused_{impl}",
            case="rope_swiglu",
            faster={"impl": impl},
            than={"impl": "eager"},
            by=2.0,
            at={"op": ("rope",), "tokens": (TOKENS,)},
            needs=(cuda(),),
            source=(
                "Liger Kernel (arXiv:2410.10989), RoPE against Hugging Face's: about 8 times less "
                "time; counted, 10 trips of each element against 2, a ratio of 5; 2 is asked for"
            ),
        )
        for impl in ("compile", "triton")
    ),
    Claim(
        name="swiglu_fused",
        case="rope_swiglu",
        faster={"impl": "triton"},
        than={"impl": "eager"},
        by=1.3,
        at={"op": ("swiglu",), "tokens": (TOKENS,)},
        needs=(cuda(),),
        source=(
            "counted as in H. He, Making Deep Learning Go Brrrr From First Principles: two "
            "kernels move each element 5 times, one 3 times, a ratio of 1.67"
        ),
    ),
)
