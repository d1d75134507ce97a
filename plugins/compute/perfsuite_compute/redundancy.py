"""Redundancy: the same angles for every head, found once or again, precisely or fast."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, torch

BASE = 10000.0
PAIRS = 64
THREADS = 256
# Heads that share an angle in registers: with more, so few blocks remain that the last run alone.
EACH = 4


@perfsuite.operator(
    # Tokens and heads: of an 8B model, of a size with tails, and small enough for a CPU.
    smoke={"tokens": 256, "heads": 4, "impl": "torch_hoisted"},
    nightly=[{"tokens": 4096, "heads": 32}, {"tokens": 4093, "heads": 31, "impl": "cuda_hoisted"}],
    full=[
        {"tokens": 256, "heads": 4, "impl": "torch_recompute"},
        {"tokens": 4093, "heads": 31, "impl": "cuda_recompute"},
    ],
    flops=lambda *, tokens, heads: 6 * tokens * heads * PAIRS,  # a pair takes 4 products, 2 sums
    rate_dtype="fp32",
    # An fp32 angle of up to 4096 is off by 4096 * 2**-23 = 5e-4 at worst, whoever computes it.
    # Fast: __powf is exp2f(y * log2f(x)), whose argument of 13.3 is off by some 2**-22 times that,
    # which makes some 2e-6 of an angle of 4096.
    tolerance=lambda *, impl: 1e-2 if impl == "cuda_fast" else 5e-4,
    metrics=[perfsuite.Metric("max_error", better="lower", threshold=0.1)],
    tags=["redundancy", "fast-math"],
    source="redundant computation: AI Systems Performance Engineering, chapter 6; rotary "
    "embedding: Su et al., RoFormer, arXiv:2104.09864",
)
def redundancy(rng: Any, *, tokens: int, heads: int) -> tuple[Any, Any]:
    """Rotate pairs of fp32 values by position x 10000**(-pair / 64), as rotary embeddings do.

    The angle does not depend on the head. ``*_recompute`` finds power, cosine and sine for each
    element; ``torch_hoisted`` has a table of them from before the launch, ``cuda_hoisted`` finds
    them once for four heads. ``cuda_fast`` recomputes with the intrinsics of fast math: cheap, but
    their error grows with the angle. ``max_error`` is the largest error of a rotated unit vector.
    """
    return rng.randn(tokens, heads, 2 * PAIRS), rng.empty(tokens, heads, 2 * PAIRS)


@redundancy.exact
def _max_error(launch: Any, x: Any, y: Any) -> dict[str, float]:
    x = torch.tensor([1.0, 0.0], device=x.device).repeat(*x.shape[:2], PAIRS)
    launch(x, y)
    return {"max_error": float((y.double() - _reference(x, y)).abs().max())}


def _cuda(ctx: Any, *, tokens: int, heads: int, impl: str) -> Any:
    macros = {"THREADS": THREADS, "HEADS": heads, "PAIRS": PAIRS, "EACH": EACH}
    kernel = load(ctx, __file__, impl.replace("cuda", "rotate"), **macros)
    shares = -(-heads // EACH) if impl == "cuda_hoisted" else heads
    blocks = -(-tokens * shares * PAIRS // 2 // THREADS)
    return lambda x, y: kernel(blocks, THREADS, x, y, tokens)


for _name in ("cuda_recompute", "cuda_fast", "cuda_hoisted"):
    redundancy.impl(_cuda, name=_name, needs=[perfsuite.cuda()])


@redundancy.impl(name="torch_recompute")
@redundancy.impl(name="torch_hoisted")
def launch_torch(ctx: Any, *, tokens: int, heads: int, impl: str) -> Any:
    """Return the rotation in torch's operators."""
    positions = torch.arange(tokens, device=ctx.place, dtype=torch.float32)
    pairs = torch.arange(PAIRS, device=ctx.place, dtype=torch.float32)

    def table(heads: int) -> Any:
        angles = positions[:, None, None] * BASE ** (-pairs / PAIRS).expand(tokens, heads, PAIRS)
        return torch.complex(angles.cos(), angles.sin())

    kept = table(1) if impl == "torch_hoisted" else None

    def launch(x: Any, y: Any) -> None:
        turned, result = (torch.view_as_complex(e.unflatten(-1, (PAIRS, 2))) for e in (x, y))
        torch.mul(turned, table(heads) if kept is None else kept, out=result)

    return launch


@redundancy.reference
def _reference(x: Any, y: Any, *, first: int = 0) -> Any:
    """Turn the pairs by a matrix each, in float64."""
    positions = torch.arange(first, first + len(x), device=x.device, dtype=torch.float64)
    pairs = torch.arange(PAIRS, device=x.device, dtype=torch.float64)
    angles = torch.outer(positions, BASE ** (-pairs / PAIRS))[:, None, :]
    left, right = x.double().unflatten(-1, (PAIRS, 2)).unbind(-1)
    cosine, sine = angles.cos(), angles.sin()
    turned = (left * cosine - right * sine, left * sine + right * cosine)
    return torch.stack(turned, dim=-1).flatten(-2)


# Count positions from 1: every token turns by its neighbour's angle.
redundancy.wrong(lambda x, y: _reference(x, y, first=1).float())
