"""A copy in device memory: through registers, through shared memory, and by TMA alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package
from perfsuite_hopper.chip import sm_count

BYTES = (2**28, 2**28 - 48)  # the second ends in the middle of every kernel's tile
THREADS = 256
UNROLL = 4  # vectors that a thread of copy_vectors holds
CHUNK = 16 << 10  # bytes of a bulk copy
SLOTS = 4
# Blocks that an SM holds, by what they take of its 2048 threads and 227 KiB: 8 x 256 threads with
# 16 KiB each, and 3 x 64 KiB.
ASYNC_BLOCKS, BULK_BLOCKS = 8, 3
BULK_SHARED_BYTES = SLOTS * CHUNK + 128


def _work(size: int, impl: str) -> Work:
    return Work(read_bytes=size, write_bytes=size)


def _memory_bytes(size: int, impl: str) -> int:
    return 3 * size


@perfsuite.case(
    axes={"size": list(BYTES), "impl": ["torch", "vectors", "cp_async", "tma"]},
    smoke={"size": [BYTES[0]]},
    needs=(package("torch"), cuda(), arch("sm_90")),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["memory", "hopper"],
    source="Tensor Memory Accelerator: chapter 5 of the book; CUDA C++ Programming Guide, "
    "'Asynchronous Data Copies using the Tensor Memory Accelerator'",
)
def tma_copy(ctx: Any, size: int, impl: str) -> Workload:
    """Copy ``size`` bytes within device memory, equal to the bit.

    ``torch`` is Tensor.copy_. ``vectors`` loads four times 16 bytes a thread into registers, then
    stores them. ``cp_async`` loads into shared memory instead, three accesses ahead. ``tma`` has
    one thread a block start bulk copies of 16 KiB in and out; no data passes through a register.
    All four end at the memory's own limit: TMA is no faster there. What it saves is registers,
    issue slots and threads, which a kernel that computes beside its copies has other use for.
    On an H200 ``vectors`` reaches 92 % of the copy ceiling, ``cp_async`` 89 % and ``tma`` 88 %;
    torch's copy has 97 %, and 62 % at the size that is 48 bytes short. Depth is not what holds
    ``tma`` back: 396 blocks have three loads of 16 KiB each under way, 19 MB, where 4 MB hide a
    microsecond. Its last round of chunks leaves 60 % of the blocks idle, which costs 1 %; the rest
    is put down to bursts of reading and writing as long as a chunk, which is not shown.
    ``size`` must be a multiple of 16.
    """

    def wrong(x: Any, y: Any) -> None:
        # The last chunk of a bulk copy is shorter than the others, and left out.
        whole = (x.numel() - 1) // CHUNK * CHUNK
        y[:whole].copy_(x[:whole])

    return Workload(
        fn=_launch_of(ctx, impl),
        make_inputs=lambda rng: (
            rng.randint(1, 128, size, dtype="int8"),
            rng.empty(size, dtype="int8"),
        ),
        reference=lambda x, y: x,
        wrong=wrong,
        tolerance=0.0,
    )


def cuda_options() -> tuple[str, ...]:
    """Return the macros of tma_copy.cu."""
    return (f"-DTHREADS={THREADS}", f"-DSLOTS={SLOTS}", f"-DCHUNK={CHUNK}")


def _launch_of(ctx: Any, impl: str) -> Callable[..., Any]:
    if impl == "torch":
        return lambda x, y: y.copy_(x)
    names = {"vectors": "copy_vectors", "cp_async": "copy_async", "tma": "copy_bulk"}
    path = Path(__file__).with_name("tma_copy.cu")
    run = ctx.load_cuda(path, names[impl], options=cuda_options())
    sms = sm_count()

    def launch(x: Any, y: Any) -> None:
        size = x.numel()
        if impl == "vectors":
            run(-(-size // (16 * THREADS * UNROLL)), THREADS, x, y, size)
        elif impl == "cp_async":
            run(sms * ASYNC_BLOCKS, THREADS, x, y, size)
        else:
            run(sms * BULK_BLOCKS, 32, x, y, size, shared_bytes=BULK_SHARED_BYTES)

    return launch


CASES: tuple[perfsuite.Case, ...] = (tma_copy,)
