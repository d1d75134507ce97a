"""Kernels whose size the device finds out: launched by the host that asks, or by the device."""

from pathlib import Path
from typing import Any

from perfsuite import Claim, Regime, arch, cuda, feature, operator
from perfsuite.gpu import torch
from perfsuite_scheduling import congruence, counting

SOURCE = Path(__file__).with_name("dynamic_parallelism.cu")
THREADS = 256
MOST = 4096
ROUNDS = 64
OPTIONS = (f"-DTHREADS={THREADS}", f"-DMOST={MOST}", f"-DROUNDS={ROUNDS}")
# The device's own runtime is linked to it.
LINKED = (*OPTIONS, "-rdc=true")


@operator(
    smoke={"items": 127},
    full={"items": 16},
    needs=(arch("sm_90+"), cuda(), feature("nvcc").when(impl="device")),
    flops=None,
    metrics=[counting.READS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch", "synchronisation"],
    source="dynamic parallelism: AI Systems Performance Engineering, chapter 7; CUDA C++ "
    "Programming Guide, CUDA dynamic parallelism, fire and forget",
)
def dynamic_parallelism(rng: Any, *, items: int) -> tuple[Any, Any]:
    """Launch a kernel for each item, of a size that only the device knows: 1 to 4096 values.

    ``host_each`` measures an item, reads its size and launches, one item after the other.
    ``host_once`` measures all items, reads all sizes at once and launches then: what a host can do
    without help. ``device`` measures them and launches from the GPU, fire and forget; the host
    launches once and reads nothing. A round is exact arithmetic on whole numbers modulo 2**32, so
    results are compared to the bit; no rate of such operations is known, so no work is stated.
    """
    return congruence.inputs(rng, items, MOST)


dynamic_parallelism.exact(counting.reads)


@dynamic_parallelism.impl(name="host_once")
@dynamic_parallelism.impl(name="host_each")
def _host(ctx: Any, *, items: int, impl: str) -> Any:
    measure, child = (ctx.load_cuda(SOURCE, name, options=OPTIONS) for name in ("measure", "child"))
    counts = torch.zeros(items, dtype=torch.int32, device=ctx.place)

    def launch(x: Any, y: Any, item: int, count: int) -> None:
        child(-(-count // THREADS), THREADS, x, y, item, count)

    def host_each(x: Any, y: Any) -> None:
        for item in range(items):
            measure(1, THREADS, x, y, counts, item)
            launch(x, y, item, counts[item].item())

    def host_once(x: Any, y: Any) -> None:
        measure(items, THREADS, x, y, counts, 0)
        for item, count in enumerate(counts.tolist()):
            launch(x, y, item, count)

    return host_each if impl == "host_each" else host_once


@dynamic_parallelism.impl
def _device(ctx: Any, *, items: int) -> Any:
    parent = ctx.load_cuda(SOURCE, "parent", options=LINKED)
    return lambda x, y: parent(items, THREADS, x, y)


@dynamic_parallelism.reference
def _reference(x: Any, y: Any) -> Any:
    """Work through the values whose place is below what the item's first value says."""
    counts = 1 + (((x[:, :1].long() % 2**32) >> 8) % MOST)
    places = torch.arange(MOST, device=x.device)
    return torch.where(places < counts, congruence.advance(x, ROUNDS), x)


DEVICE_LAUNCH = Claim(
    name="device_launch",
    case="dynamic_parallelism",
    faster={"impl": "device"},
    than={"impl": "host_once"},
    by=8.0,
    at={"items": (127,)},
    source="AI Systems Performance Engineering, companion code, folder ch12: launches from the "
    "device are 10 times as fast as from the host on a B200. Measured over a host that "
    "reads all counts at once: 21 on an H200, 28 on an H100",
)
