"""A copy in device memory: through registers, through shared memory, and by TMA alone."""

from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import load, sm_count

BYTES = (2**28, 2**28 - 48)  # the second ends in the middle of every kernel's tile
THREADS = 256
UNROLL = 4  # vectors that a thread of copy_vectors holds
CHUNK = 16 << 10  # bytes of a bulk copy
SLOTS = 4
# Blocks that an SM holds, by what they take of its 2048 threads and 227 KiB: 8 x 256 threads with
# 16 KiB each, and 3 x 64 KiB.
ASYNC_BLOCKS, BULK_BLOCKS = 8, 3
BULK_SHARED_BYTES = SLOTS * CHUNK + 128


@operator(
    smoke={"size": BYTES[0]},
    nightly={"size": BYTES[1]},
    needs=[cuda(), arch("sm_90")],
    tags=["memory", "hopper"],
    source="Tensor Memory Accelerator: chapter 5 of the book; CUDA C++ Programming Guide, "
    "'Asynchronous Data Copies using the Tensor Memory Accelerator'",
)
def tma_copy(rng: Any, *, size: int) -> Any:
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
    return rng.randint(1, 128, size, dtype="int8"), rng.empty(size, dtype="int8")


tma_copy.reference(lambda x, y: x)


@tma_copy.impl(
    beats=Beats(
        "tma",
        1.0,
        "measured: 1.10 on an H200, 1.06 on an H100. The memory is the limit of both",
        at={"size": BYTES[0]},
        name="registers_suffice",
    )
)
def _torch(x: Any, y: Any) -> None:
    y.copy_(x)


@tma_copy.impl
def _vectors(ctx: Any, *, size: int) -> Any:
    run = _kernel(ctx, "copy_vectors")
    return lambda x, y: run(-(-size // (16 * THREADS * UNROLL)), THREADS, x, y, size)


@tma_copy.impl
def _cp_async(ctx: Any, *, size: int) -> Any:
    run, blocks = _kernel(ctx, "copy_async"), sm_count() * ASYNC_BLOCKS
    return lambda x, y: run(blocks, THREADS, x, y, size)


@tma_copy.impl
def _tma(ctx: Any, *, size: int) -> Any:
    run, blocks = _kernel(ctx, "copy_bulk"), sm_count() * BULK_BLOCKS
    return lambda x, y: run(blocks, 32, x, y, size, shared_bytes=BULK_SHARED_BYTES)


def _kernel(ctx: Any, name: str) -> Any:
    return load(ctx, __file__, name, THREADS=THREADS, SLOTS=SLOTS, CHUNK=CHUNK)
