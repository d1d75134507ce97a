"""Reading one field of every record: an array of structs against a struct of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite

GUIDE = (
    "NVIDIA, CUDA C++ Best Practices Guide, Coalesced Access to Global Memory, Strided Accesses: "
    "a warp's access takes as many 32-byte segments as its threads touch"
)
# Geometry of coalescing.cu.
THREADS = 256
ITEMS = 4
N = 2**24
ODD_N = 2**24 - 3


def _work(*, n: int, stride: int, impl: str) -> perfsuite.Work:
    # What has to move whatever the layout: the rest of a record is waste, and is the point.
    del stride, impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * n)


def _memory_bytes(*, n: int, stride: int, impl: str) -> int:
    del impl
    return 4 * n * (stride + 1)


@perfsuite.case(
    axes={"n": [N], "stride": [1, 2, 8, 32], "impl": ["torch", "triton", "cuda"]},
    smoke={"n": [2**21], "stride": [1, 8]},
    full={"n": [N, ODD_N], "stride": [1, 2, 4, 8, 16, 32]},
    full_only=[
        {"stride": [2]},
        {"stride": [32], "impl": ["torch"]},
        {"n": [2**21], "impl": ["cuda"]},
        {"n": [2**21], "stride": [1], "impl": ["triton"]},
    ],
    needs=[
        perfsuite.cuda().when(impl=["triton", "cuda"]),
        perfsuite.package("triton").when(impl="triton"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    source=GUIDE,
)
def coalescing(ctx: Any, *, n: int, stride: int, impl: str) -> perfsuite.Workload:
    """Copy the first field out of n records of ``stride`` floats; stride 1 is coalesced.

    The kernels are the same for every stride: what ``field[i] = record[i].x`` compiles to when
    the fields lie in records (array of structs) and when each field has its own array.
    """
    makers = {"torch": _torch, "triton": _triton, "cuda": _cuda}

    def wrong(records: Any, field: Any) -> None:
        # The last block is not launched: the grid was rounded down instead of up.
        done = (n - 1) // THREADS * THREADS
        field[:done].copy_(records[:done, 0])

    return perfsuite.Workload(
        fn=makers[impl](ctx, n, stride),
        make_inputs=lambda rng: (rng.randn(n, stride), rng.empty(n)),
        reference=_reference,
        wrong=wrong,
        tolerance=0.0,
    )


def _claim(stride: int) -> perfsuite.Claim:
    return perfsuite.Claim(
        name=f"coalesced_4x_over_stride_{stride}",
        case="coalescing",
        faster={"stride": 1},
        than={"stride": stride},
        # (8 * 4n read + 4n written) / (4n + 4n) = 4.5 with every sector used for one float.
        by=4.0,
        source=f"{GUIDE}; from 8 floats on each thread has its own segment, 1/8 of it useful",
        at={"n": (N,), "impl": ("triton", "cuda")},
        needs=(perfsuite.cuda(),),
    )


CLAIMS = (_claim(8), _claim(32))


def _reference(records: Any, field: Any) -> Any:
    """Gather by flat index: independent of views, strides and kernels."""
    import torch

    n, stride = records.shape
    index = torch.arange(n, device=field.device) * stride
    return records.reshape(-1).index_select(0, index)


def _torch(ctx: Any, n: int, stride: int) -> Callable[..., Any]:
    del ctx, n, stride
    return lambda records, field: field.copy_(records[:, 0])


def _triton(ctx: Any, n: int, stride: int) -> Callable[..., Any]:
    del ctx
    from perfsuite_memory import coalescing_triton

    return coalescing_triton.launch(n, stride)


def _cuda(ctx: Any, n: int, stride: int) -> Callable[..., Any]:
    options = (f"-DTHREADS={THREADS}", f"-DITEMS={ITEMS}", f"-DSTRIDE={stride}")
    source = Path(__file__).with_name("coalescing.cu")
    kernel = ctx.load_cuda(source, "take_field", options=options)
    blocks = -(-n // (THREADS * ITEMS))
    return lambda records, field: kernel(blocks, THREADS, records, field, n)
