"""Communication beside computation: one after the other, or at the same time."""

import time
from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import matmul64, torch
from perfsuite_distributed.ranks import BOOK, dist, mean, over_links, own, true_mean

_OVERLAP = f"{BOOK} 4, overlapping communication"
_SOURCE = f"{_OVERLAP}; microsoft/superbenchmark 700d650, computation-communication-overlap"
# Where streams of different priority show nothing.
_SMALL = {"ranks": 2, "n": 256, "mib": 1}
_LARGE: dict[str, Any] = {"ranks": [2, 4], "n": 4096, "mib": [64, 256]}
# One play is this many rounds of the two parts.
ROUNDS = 10
# Layers whose gradients are being computed while the sum of an earlier bucket is under way. One
# matmul alone takes all SMs at once, and the sum, whose blocks come after, waits for its end.
LAYERS = 8
_PAYS = perfsuite.Beats(
    "serial",
    1.0,
    f"{_OVERLAP}: communication that runs beside computation costs less than after it",
    needs=(perfsuite.cuda(),),
    name="pays",
)


@perfsuite.operator(
    smoke={**_SMALL, "impl": ["serial", "overlap"]},
    nightly=_LARGE,
    ranks="ranks",
    work=lambda ranks, n, mib, impl: over_links(
        "all_reduce", mib * 2**20, ranks, flops=LAYERS * 2.0 * n**3, rate_dtype="bf16"
    ),
    in_place=True,
    cold=False,
    version=2,
    source=_SOURCE,
)
def overlap(rng: Any, *, ranks: int, n: int, mib: int) -> Any:
    """Multiply n x n matrices of eight layers (bf16, fp32 on a CPU) and average mib over the ranks.

    The average is of fp32, as of a bucket of gradients. ``serial`` waits for it before it
    multiplies; ``overlap`` starts it on a stream of its own, multiplies meanwhile, and waits at the
    end; ``priority`` gives that stream the higher priority, so that its blocks get the first SMs
    that fall free. Beside one matmul instead of eight nothing is hidden (two H200s, 256 MiB: 1102
    us against 1078 in turn).
    """
    gradient = own(rng.randn(mib * 2**18))
    dtype = "bfloat16" if gradient.is_cuda else "float32"
    return rng.randn(LAYERS, n, n, dtype=dtype), rng.randn(n, n, dtype=dtype), gradient


@overlap.reference
def _reference(a: Any, b: Any, gradient: Any) -> Any:
    return torch.stack([matmul64(layer, b) for layer in a]), true_mean(gradient)


@overlap.wrong
def _read_too_early(a: Any, b: Any, gradient: Any) -> Any:
    """Read a gradient before the other ranks' part has come."""
    return multiplied(a, b), own(gradient)


def multiplied(a: Any, b: Any) -> Any:
    """Return each layer's product, one matmul after the other."""
    products = torch.empty_like(a)
    for layer, product in zip(a, products, strict=True):
        torch.matmul(layer, b, out=product)
    return products


@overlap.impl
def _serial(a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    mean(gradient)
    return multiplied(a, b), gradient


@overlap.impl(name="overlap", beats=_PAYS)
def _beside(ctx: Any, *, impl: str) -> Any:
    if ctx.device != "cuda":
        return _by_gloo
    side = torch.cuda.Stream(priority=-1 if impl == "priority" else 0)

    def run(a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            mean(gradient)
        product = multiplied(a, b)
        torch.cuda.current_stream().wait_stream(side)
        return product, gradient

    return run


overlap.impl(_beside, name="priority", needs=[perfsuite.cuda()], beats=_PAYS)


def _by_gloo(a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    work = dist.all_reduce(gradient, async_op=True)
    product = multiplied(a, b)
    work.wait()
    return product, gradient.mul_(1 / dist.get_world_size())


@perfsuite.case(
    nightly=[_SMALL, _LARGE],
    ranks="ranks",
    regime=perfsuite.Regime.END_TO_END,
    cold=False,
    metrics=[perfsuite.Metric("hidden_percent", "%", "higher")],
    version=2,
    source=_SOURCE,
)
def overlap_share(ctx: Any, *, ranks: int, n: int, mib: int) -> perfsuite.Scenario:
    """Tell how much of the shorter part is hidden behind the longer: (serial - overlap) / shorter.

    Ten rounds each of the matmul, the sum, both in turn and both at once (the sum on a stream of
    higher priority), awaited by the host; the slowest rank counts. 0 is no overlap at all, 100 is
    all of it.
    """
    both = _beside(ctx, impl="priority")

    def inputs(seed: int) -> tuple[Any, Any, Any]:
        generator = torch.Generator(device=ctx.device).manual_seed(seed)
        draw = partial(torch.randn, device=ctx.device, generator=generator)
        kind = torch.bfloat16 if ctx.device == "cuda" else torch.float32
        return draw(LAYERS, n, n).to(kind), draw(n, n).to(kind), own(draw(mib * 2**18))

    def play(seed: int) -> tuple[Any, dict[str, float]]:
        a, b, gradient = inputs(seed)
        result = both(a, b, gradient.clone())
        matmul = _seconds(ctx, lambda: multiplied(a, b))
        reduction = _seconds(ctx, lambda: mean(gradient))
        in_turn = _seconds(ctx, lambda: _serial(a, b, gradient))
        at_once = _seconds(ctx, lambda: both(a, b, gradient))
        hidden = 100 * (in_turn - at_once) / min(matmul, reduction)
        return result, {"hidden_percent": max(hidden, 0.0)}

    return perfsuite.Scenario(
        play=play,
        reference=lambda seed: _reference(*inputs(seed)),
        wrong=lambda seed: _read_too_early(*inputs(seed)),
    )


def _seconds(ctx: Any, act: Any) -> float:
    """Return the seconds of ten rounds on the slowest rank."""

    def waited() -> float:
        if ctx.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    act()
    dist.barrier()
    begun = waited()
    for _ in range(ROUNDS):
        act()
    taken = torch.tensor([waited() - begun], dtype=torch.float64, device=ctx.device)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)
