"""Managed memory: pages that move when they are touched, or are sent ahead."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_memory import advance, driver

# One round: what is timed is how the data come and go.
ROUNDS = 1
LEAST_MIB = 16


def _work(*, mib: int, impl: str) -> perfsuite.Work:
    # Each byte crosses the link once in each direction, one after the other.
    return perfsuite.Work(read_bytes=mib * 2**20, write_bytes=mib * 2**20, link="pcie")


@perfsuite.case(
    # Opt-in: a size too small to be listed, so that the full tier alone has variants.
    axes={"mib": [1], "impl": ["explicit", "fault", "prefetch"]},
    full={"mib": [64, 256]},
    only=lambda mib, impl: mib >= LEAST_MIB,
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=lambda mib, impl: 2 * mib * 2**20,
    regime=perfsuite.Regime.END_TO_END,
    # The data come from the host.
    cold=False,
    tags=["managed"],
    source="CUDA C++ Programming Guide, Unified Memory Programming",
)
def unified(ctx: Any, *, mib: int, impl: str) -> perfsuite.Workload:
    """Write a buffer on the host, step its numbers on the GPU, and read it on the host.

    explicit copies it over from and to page-locked memory; fault lets the GPU and then the host
    fault on the pages of managed memory; prefetch sends them ahead each way.
    """
    n = mib * 2**20 // 4
    step = advance.load(ctx, ROUNDS)

    def make_inputs(rng: Any) -> tuple[Any, Any]:
        x = rng.randint(-(2**31), 2**31 - 1, n).cpu()
        return x, rng.empty(n, dtype="int32", place="host")

    return perfsuite.Workload(
        fn=_explicit(step, n, ctx.place) if impl == "explicit" else _managed(step, n, impl),
        make_inputs=make_inputs,
        reference=reference,
        wrong=before_the_gpu,
        tolerance=0.0,
        captures=False,
        rotates=False,
    )


def reference(x: Any, y: Any) -> Any:
    """Return the output by its closed form, on the host."""
    return advance.expected(x, ROUNDS)


def before_the_gpu(x: Any, y: Any) -> None:
    """Read the last page before the GPU was waited for."""
    page = 1024
    y[:-page] = reference(x[:-page], y)
    y[-page:] = x[-page:]


def _explicit(step: Callable[[Any, int], None], n: int, place: str) -> Callable[[Any, Any], None]:
    import torch

    staged = torch.empty(n, dtype=torch.int32, pin_memory=True)
    buffer = torch.empty(n, dtype=torch.int32, device=place)

    def run(x: Any, y: Any) -> None:
        staged.copy_(x)
        buffer.copy_(staged, non_blocking=True)
        step(buffer, n)
        staged.copy_(buffer, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        y.copy_(staged)

    return run


def _managed(step: Callable[[Any, int], None], n: int, impl: str) -> Callable[[Any, Any], None]:
    import torch
    from cuda.bindings import driver as cuda

    size = 4 * n
    (address,) = driver.asked(
        cuda.cuMemAllocManaged(size, cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    )
    pages = (ctypes.c_char * size).from_address(int(address))
    buffer = torch.frombuffer(pages, dtype=torch.int32)
    places = {"here": driver.host_location(), "there": driver.device_location()}

    def send(where: str) -> None:
        if impl == "prefetch":
            place = places[where]
            driver.asked(cuda.cuMemPrefetchAsync(address, size, place, 0, driver.stream()))

    def run(x: Any, y: Any) -> None:
        # The last launch left the pages with the host.
        buffer.copy_(x)
        send("there")
        step(int(address), n)
        send("here")
        torch.cuda.current_stream().synchronize()
        y.copy_(buffer)

    # The memory lives as long as the launch does.
    weakref.finalize(run, cuda.cuMemFree, address)
    return run
