"""CUDA graphs that Inductor records in trees: how long that takes, and what memory they hold."""

import gc
from collections.abc import Callable, Mapping
from copy import deepcopy
from tempfile import TemporaryDirectory
from typing import Any

from perfsuite import Metric, Regime, Scenario, case
from perfsuite.gpu import TRITON, Later, torch
from perfsuite_compiler.compile_time import cached_in, given, model_of, taken

ROWS, REPLAYS = 16384, 20
UNITS = {"capture_ms": "ms", "replay_us": "us", "held_bytes": "bytes", "graphs": ""}
trees = Later("torch._inductor.cudagraph_trees")


@case(
    nightly={"ways": [1, 4]},
    needs=TRITON,
    metrics=[Metric(*each) for each in UNITS.items()],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["compile", "graph"],
    source="pytorch/pytorch#174575: reduce-overhead is slower by 40 to 55 % in 2.10, as its trees "
    "of graphs take longer; #128424: memory grows as graphs are recorded",
)
def graph_trees(ctx: Any, ways: int) -> Scenario:
    """Record the CUDA graphs of five layers and of each way behind them, 16,384 rows of 256.

    The ways are one to four layers of norm, product and GELU in fp32. Each part is compiled, and
    the graphs of the ways begin with one graph and share its memory. ``time_us`` is all of it, with
    kernels from a cache. ``capture_ms`` is the round in which the ways are recorded, ``replay_us``
    the least time of a round that replays them. ``held_bytes`` is what the allocator keeps more
    than before, ``graphs`` how many were recorded. The output is checked against eager mode in
    float64.
    """
    parts = [model_of(ctx.device, layers) for layers in (5, *range(1, ways + 1))]
    cache = TemporaryDirectory(prefix="perfsuite-")

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        x = given(ctx.device, seed, ROWS)
        with cached_in(cache.name):
            before = _kept_bytes()
            run = _every_way([torch.compile(part, mode="reduce-overhead") for part in parts])
            run(x)  # compiles, and runs once without a graph
            capture_s, _ = taken(lambda: run(x))
            held = _kept_bytes() - before
            replays_s = [taken(lambda: run(x))[0] for _ in range(REPLAYS)]
            output = run(x)
        return output, {
            "capture_ms": 1e3 * capture_s,
            "replay_us": 1e6 * min(replays_s),
            "held_bytes": held,
            "graphs": trees.get_manager(x.device.index).new_graph_id().id,
        }

    def reference(seed: int) -> Any:
        run = _every_way([part.double() for part in deepcopy(parts)])
        return run(given(ctx.device, seed, ROWS).double()).detach()

    return Scenario(play=play, reference=reference, wrong=lambda seed: reference(seed + 1))


def _every_way(parts: list[Any]) -> Callable[[Any], Any]:
    """Return what runs the first part and each other one behind it."""
    first, *ways = parts

    def run(x: Any) -> Any:
        outputs = []
        for way in ways:
            torch.compiler.cudagraph_mark_step_begin()
            outputs.append(way(first(x)).clone())  # the next way writes where this one did
        return torch.stack(outputs)

    return run


def _kept_bytes() -> int:
    """Return what torch's allocator keeps of the GPU once all that is free is given back."""
    gc.collect()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())
