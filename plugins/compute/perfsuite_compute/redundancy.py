"""Redundancy: the same angles for every head, found once or again, precisely or fast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Metric, Work, Workload, cuda, package

SOURCE = Path(__file__).with_name("redundancy.cu")
BASE = 10000.0
PAIRS = 64
THREADS = 256
# Heads that share an angle in registers: with more, so few blocks remain that the last run alone.
EACH = 4
KERNELS = {
    "cuda_recompute": "rotate_recompute",
    "cuda_fast": "rotate_fast",
    "cuda_hoisted": "rotate_hoisted",
}
_IMPLS = ("torch_recompute", "torch_hoisted", *KERNELS)
# Tokens and heads: of an 8B model, of a size with tails, and small enough for a CPU.
_SHAPES = ((4096, 32), (4093, 31), (256, 4))
# An fp32 angle of up to 4096 is off by 4096 * 2**-23 = 5e-4 at worst, whoever computes it.
_TOLERANCE = 5e-4
# Fast: __powf is exp2f(y * log2f(x)), whose argument of 13.3 is off by some 2**-22 times that,
# which makes some 2e-6 of an angle of 4096.
_FAST_TOLERANCE = 1e-2


def _is_asked(tokens: int, heads: int, impl: str) -> bool:
    if (tokens, heads) == _SHAPES[1]:
        return impl in {"cuda_recompute", "cuda_hoisted"}
    return (tokens, heads) in _SHAPES


def _work(tokens: int, heads: int, impl: str) -> Work:
    # Each element is read and written once; a pair takes four products and two sums.
    pairs = tokens * heads * PAIRS
    return Work(read_bytes=8 * pairs, write_bytes=8 * pairs, flops=6 * pairs, rate_dtype="fp32")


def _memory_bytes(tokens: int, heads: int, impl: str) -> int:
    # Input and output, and the reference's float64 of them.
    return tokens * heads * PAIRS * 2 * (4 + 4 + 3 * 8)


@perfsuite.case(
    axes={"tokens": [4096, 4093], "heads": [32, 31], "impl": list(_IMPLS)},
    smoke={"tokens": [256], "heads": [4], "impl": ["torch_recompute", "torch_hoisted"]},
    only=_is_asked,
    full_only=[
        {"tokens": [4093], "impl": ["cuda_recompute"]},
        {"tokens": [256], "impl": ["torch_recompute"]},
    ],
    needs=(package("torch"), cuda().when(impl=list(KERNELS))),
    work=_work,
    memory_bytes=_memory_bytes,
    metrics=[Metric("max_error", better="lower", threshold=0.1)],
    tags=["redundancy", "fast-math"],
    source="redundant computation: AI Systems Performance Engineering, chapter 6; rotary "
    "embedding: Su et al., RoFormer, arXiv:2104.09864",
)
def redundancy(ctx: Any, tokens: int, heads: int, impl: str) -> Workload:
    """Rotate pairs of fp32 values by position x 10000**(-pair / 64), as rotary embeddings do.

    The angle does not depend on the head. ``*_recompute`` finds power, cosine and sine for each
    element; ``torch_hoisted`` has a table of them from before the launch, ``cuda_hoisted`` finds
    them once for four heads. ``cuda_fast`` recomputes with the intrinsics of fast math: cheap, but
    their error grows with the angle. ``max_error`` is the largest error of a rotated unit vector.
    """
    fn = (
        launch_torch(ctx, tokens, heads, impl)
        if impl not in KERNELS
        else _launch_cuda(ctx, heads, impl)
    )

    def exact() -> dict[str, float]:
        import torch

        x = torch.tensor([1.0, 0.0], device=ctx.place).repeat(tokens, heads, PAIRS)
        y = torch.empty_like(x)
        fn(x, y)
        return {"max_error": float((y.double() - _reference(x)).abs().max())}

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (
            rng.randn(tokens, heads, 2 * PAIRS),
            rng.empty(tokens, heads, 2 * PAIRS),
        ),
        reference=lambda x, y: _reference(x),
        # Positions count from 1: every token turns by its neighbour's angle.
        wrong=lambda x, y: _reference(x, first=1).float(),
        tolerance=_FAST_TOLERANCE if impl == "cuda_fast" else _TOLERANCE,
        exact=exact,
    )


def cuda_options(heads: int) -> tuple[str, ...]:
    """Return the macros of redundancy.cu."""
    return (f"-DTHREADS={THREADS}", f"-DHEADS={heads}", f"-DPAIRS={PAIRS}", f"-DEACH={EACH}")


def _launch_cuda(ctx: Any, heads: int, impl: str) -> Callable[[Any, Any], None]:
    kernel = ctx.load_cuda(SOURCE, KERNELS[impl], options=cuda_options(heads))
    shares = -(-heads // EACH) if impl == "cuda_hoisted" else heads

    def launch(x: Any, y: Any) -> None:
        threads = len(x) * shares * PAIRS // 2
        kernel(-(-threads // THREADS), THREADS, x, y, len(x))

    return launch


def launch_torch(ctx: Any, tokens: int, heads: int, impl: str) -> Callable[[Any, Any], None]:
    """Return the rotation in torch's operators."""
    import torch

    place = ctx.place
    positions = torch.arange(tokens, device=place, dtype=torch.float32)
    pairs = torch.arange(PAIRS, device=place, dtype=torch.float32)
    shared = impl == "torch_hoisted"

    def table() -> Any:
        shape = (tokens, 1, PAIRS) if shared else (tokens, heads, PAIRS)
        angles = positions[:, None, None] * (BASE ** (-pairs / PAIRS).expand(shape))
        return torch.complex(angles.cos(), angles.sin())

    kept = table() if shared else None

    def launch(x: Any, y: Any) -> None:
        turned = torch.view_as_complex(x.unflatten(-1, (PAIRS, 2)))
        result = torch.view_as_complex(y.unflatten(-1, (PAIRS, 2)))
        torch.mul(turned, table() if kept is None else kept, out=result)

    return launch


def _reference(x: Any, *, first: int = 0) -> Any:
    """Turn the pairs by a matrix each, in float64."""
    import torch

    positions = torch.arange(first, first + len(x), device=x.device, dtype=torch.float64)
    pairs = torch.arange(PAIRS, device=x.device, dtype=torch.float64)
    angles = torch.outer(positions, BASE ** (-pairs / PAIRS))[:, None, :]
    left, right = x.double().unflatten(-1, (PAIRS, 2)).unbind(-1)
    cosine, sine = angles.cos(), angles.sin()
    turned = (left * cosine - right * sine, left * sine + right * cosine)
    return torch.stack(turned, dim=-1).flatten(-2)


CASES: tuple[perfsuite.Case, ...] = (redundancy,)
