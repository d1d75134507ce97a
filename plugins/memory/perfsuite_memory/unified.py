"""Managed memory: pages that move when they are touched, or are sent ahead."""

import ctypes
import weakref
from typing import Any

from perfsuite import Regime, Work, cuda, operator
from perfsuite.gpu import asked, driver, stream, torch
from perfsuite_memory import advance

# One round: what is timed is how the data come and go.
ROUNDS = 1


@operator(
    full={"mib": [64, 256]},
    needs=[cuda()],
    # Each byte crosses the link once in each direction, one after the other.
    work=lambda mib, impl: Work(read_bytes=mib * 2**20, write_bytes=mib * 2**20, link="pcie"),
    regime=Regime.END_TO_END,
    cold=False,  # the data come from the host
    tags=["managed"],
    source="CUDA C++ Programming Guide, Unified Memory Programming",
)
def unified(rng: Any, *, mib: int) -> Any:
    """Write a buffer on the host, step its numbers on the GPU, and read it on the host.

    explicit copies it over from and to page-locked memory; fault lets the GPU and then the host
    fault on the pages of managed memory; prefetch sends them ahead each way.
    """
    n = mib * 2**20 // 4
    return rng.randint(-(2**31), 2**31 - 1, n).cpu(), rng.empty(n, dtype="int32", place="host")


unified.reference(lambda x, y: advance.expected(x, ROUNDS))


@unified.impl
def _explicit(ctx: Any, *, mib: int) -> Any:
    n, step = mib * 2**20 // 4, advance.load(ctx, ROUNDS)
    staged = torch.empty(n, dtype=torch.int32, pin_memory=True)
    buffer = torch.empty(n, dtype=torch.int32, device=ctx.place)

    def run(x: Any, y: Any) -> None:
        staged.copy_(x)
        buffer.copy_(staged, non_blocking=True)
        step(buffer, n)
        staged.copy_(buffer, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        y.copy_(staged)

    return run


def _managed(ctx: Any, *, mib: int, impl: str) -> Any:
    size, step = mib * 2**20, advance.load(ctx, ROUNDS)
    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    (address,) = asked(driver.cuMemAllocManaged(size, flags))
    pages = (ctypes.c_char * size).from_address(int(address))
    buffer = torch.frombuffer(pages, dtype=torch.int32)

    def send(kind: str) -> None:
        if impl == "prefetch":
            place = driver.CUmemLocation()
            place.type = getattr(driver.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
            place.id = 0
            asked(driver.cuMemPrefetchAsync(address, size, place, 0, stream()))

    def run(x: Any, y: Any) -> None:
        # The last launch left the pages with the host.
        buffer.copy_(x)
        send("DEVICE")
        step(int(address), size // 4)
        send("HOST")
        torch.cuda.current_stream().synchronize()
        y.copy_(buffer)

    # The memory lives as long as the launch does.
    weakref.finalize(run, driver.cuMemFree, address)
    return run


for name in ("fault", "prefetch"):
    unified.impl(_managed, name=name)
