"""Communication beside computation: one after the other, or at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_distributed.ranks import bus_bytes, mean, own, true_mean

CHAPTER = "AI Systems Performance Engineering, chapter 4, overlapping communication"
SUPERBENCH = "microsoft/superbenchmark 700d650, computation-communication-overlap"
# Sizes of a quick look, where streams of different priority show nothing.
SMALL = 256
# One play is this many rounds of the two parts.
ROUNDS = 10
# Layers whose gradients are being computed while the sum of an earlier bucket is under way. One
# matmul alone takes all SMs at once, and the sum, whose blocks come after, waits for its end.
LAYERS = 8


def _work(*, ranks: int, n: int, mib: int, impl: str) -> perfsuite.Work:
    del impl
    moved = bus_bytes("all_reduce", mib * 2**20, ranks)
    return perfsuite.Work(
        read_bytes=moved, flops=LAYERS * 2.0 * n**3, rate_dtype="bf16", link="nvlink"
    )


@perfsuite.case(
    axes={
        "ranks": [2, 4],
        "n": [4096],
        "mib": [64, 256],
        "impl": ["serial", "overlap", "priority"],
    },
    only=lambda ranks, n, mib, impl: impl != "priority" or n > SMALL,
    needs=[perfsuite.cuda().when(impl="priority")],
    smoke={"ranks": [2], "n": [256], "mib": [1]},
    ranks="ranks",
    work=_work,
    memory_bytes=lambda ranks, n, mib, impl: (4 * LAYERS + 2) * n * n + 2 * mib * 2**20,
    cold=False,
    version=2,
    source=f"{CHAPTER}; {SUPERBENCH}",
)
def overlap(ctx: Any, *, ranks: int, n: int, mib: int, impl: str) -> perfsuite.Workload:
    """Multiply n x n matrices of eight layers (bf16, fp32 on a CPU) and average mib over the ranks.

    The average is of fp32, as of a bucket of gradients. ``serial`` waits for it before it
    multiplies; ``overlap`` starts it on a stream of its own, multiplies meanwhile, and waits at the
    end; ``priority`` gives that stream the higher priority, so that its blocks get the first SMs
    that fall free. Beside one matmul instead of eight nothing is hidden (two H200s, 256 MiB: 1102
    us against 1078 in turn).
    """
    del ranks
    import torch

    steps = _Parts(ctx, overlapped=impl != "serial", priority=-1 if impl == "priority" else 0)

    def wrong(a: Any, b: Any, gradient: Any) -> Any:
        product, _ = steps.run(a, b, gradient)
        return product, own(gradient, ctx.rank)  # read before the other ranks' part had come

    return perfsuite.Workload(
        fn=steps.run,
        make_inputs=lambda rng: steps.inputs(rng, n, mib),
        reference=lambda a, b, g: (
            torch.stack([layer.double() @ b.double() for layer in a]),
            true_mean(g),
        ),
        wrong=wrong,
        in_place=True,
    )


class _Parts:
    """The two parts on this rank's device."""

    def __init__(self, ctx: Any, *, overlapped: bool, priority: int = 0) -> None:
        import torch

        self.rank = ctx.rank
        self.dtype = "bfloat16" if ctx.device == "cuda" else "float32"
        is_streamed = overlapped and ctx.device == "cuda"
        self.side = torch.cuda.Stream(priority=priority) if is_streamed else None
        self.is_overlapped = overlapped

    def inputs(self, rng: Any, n: int, mib: int) -> tuple[Any, Any, Any]:
        """Return the layers' matrices, the one they are multiplied by, and a gradient."""
        matrices = (rng.randn(*shape, dtype=self.dtype) for shape in ((LAYERS, n, n), (n, n)))
        return (*matrices, own(rng.randn(mib * 2**18), self.rank))

    def run(self, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
        """Reduce and multiply, side by side where asked for and possible."""
        import torch
        import torch.distributed as dist

        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                mean(gradient)
            product = multiplied(a, b)
            torch.cuda.current_stream().wait_stream(self.side)
            return product, gradient
        if self.is_overlapped:
            work = dist.all_reduce(gradient, async_op=True)
            product = multiplied(a, b)
            work.wait()
            return product, gradient.mul_(1 / dist.get_world_size())
        mean(gradient)
        return multiplied(a, b), gradient


def multiplied(a: Any, b: Any) -> Any:
    """Return each layer's product, one matmul after the other."""
    import torch

    products = torch.empty_like(a)
    for layer, product in zip(a, products, strict=True):
        torch.matmul(layer, b, out=product)
    return products


@perfsuite.case(
    axes={"ranks": [2, 4], "n": [4096], "mib": [64, 256]},
    smoke={"ranks": [2], "n": [256], "mib": [1]},
    ranks="ranks",
    regime=perfsuite.Regime.END_TO_END,
    cold=False,
    metrics=[perfsuite.Metric("hidden_percent", "%", "higher")],
    version=2,
    waits=lambda **_: True,
    source=f"{CHAPTER}; {SUPERBENCH}",
)
def overlap_share(ctx: Any, *, ranks: int, n: int, mib: int) -> perfsuite.Scenario:
    """Tell how much of the shorter part is hidden behind the longer: (serial - overlap) / shorter.

    Ten rounds each of the matmul, the sum, both in turn and both at once (the sum on a stream of
    higher priority), awaited by the host; the slowest rank counts. 0 is no overlap at all, 100 is
    all of it.
    """
    del ranks
    import torch

    serial, both = _Parts(ctx, overlapped=False), _Parts(ctx, overlapped=True, priority=-1)

    def inputs(seed: int) -> tuple[Any, Any, Any]:
        generator = torch.Generator(device=ctx.device).manual_seed(seed)
        kind = getattr(torch, serial.dtype)
        a = torch.randn(LAYERS, n, n, device=ctx.device, generator=generator)
        b = torch.randn(n, n, device=ctx.device, generator=generator)
        gradient = torch.randn(mib * 2**18, device=ctx.device, generator=generator)
        return a.to(kind), b.to(kind), own(gradient, ctx.rank)

    def play(seed: int) -> tuple[Any, dict[str, float]]:
        a, b, gradient = inputs(seed)
        result = both.run(a, b, gradient.clone())
        times = {
            "matmul": _seconds(ctx, lambda: multiplied(a, b)),
            "sum": _seconds(ctx, lambda: mean(gradient)),
            "serial": _seconds(ctx, lambda: serial.run(a, b, gradient)),
            "both": _seconds(ctx, lambda: both.run(a, b, gradient)),
        }
        shorter = min(times["matmul"], times["sum"])
        hidden = 100 * (times["serial"] - times["both"]) / shorter
        return result, {"hidden_percent": max(hidden, 0.0)}

    def reference(seed: int) -> Any:
        a, b, gradient = inputs(seed)
        return torch.stack([layer.double() @ b.double() for layer in a]), true_mean(gradient)

    def wrong(seed: int) -> Any:
        a, b, gradient = inputs(seed)
        return (*both.run(a, b, gradient.clone())[:1], gradient)

    return perfsuite.Scenario(play=play, reference=reference, wrong=wrong)


def _seconds(ctx: Any, act: Callable[[], Any]) -> float:
    """Return the seconds of ten rounds on the slowest rank."""
    import torch
    import torch.distributed as dist

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


CASES = (
    overlap,
    overlap_share,
    perfsuite.Claim(
        name="overlap_pays",
        case="overlap",
        faster={"impl": "overlap"},
        than={"impl": "serial"},
        by=1.0,
        source=f"{CHAPTER}: communication that runs beside computation costs less than after it",
        needs=(perfsuite.cuda(),),
    ),
    perfsuite.Claim(
        name="priority_pays",
        case="overlap",
        faster={"impl": "priority"},
        than={"impl": "serial"},
        by=1.0,
        source=f"{CHAPTER}: communication that runs beside computation costs less than after it",
        needs=(perfsuite.cuda(),),
    ),
)
