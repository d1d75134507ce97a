"""Reading one field of every record: an array of structs against a struct of arrays."""

from typing import Any

from perfsuite import Claim, Work, cuda, operator
from perfsuite.gpu import TRITON, Later, load, torch

kernels = Later("perfsuite_memory.coalescing_triton")
GUIDE = (
    "NVIDIA, CUDA C++ Best Practices Guide, Coalesced Access to Global Memory, Strided Accesses: "
    "a warp's access takes as many 32-byte segments as its threads touch"
)
# Geometry of coalescing.cu.
THREADS = 256
ITEMS = 4
N = 2**24
ODD_N = 2**24 - 3


@operator(
    smoke=[
        {"n": 2**21, "stride": [1, 8], "impl": "torch"},
        {"n": 2**21, "stride": 8, "impl": "triton"},
    ],
    nightly=[
        {"n": N, "stride": [1, 8], "impl": "torch"},
        {"n": N, "stride": [1, 8, 32], "impl": ["triton", "cuda"]},
    ],
    full=[{"n": [N, ODD_N], "stride": [1, 2, 4, 8, 16, 32]}, {"n": 2**21, "stride": [1, 8]}],
    # What has to move whatever the layout: the rest of a record is waste, and is the point.
    work=lambda n, **_: Work(read_bytes=4 * n, write_bytes=4 * n),
    memory_bytes=lambda n, stride, impl: 4 * n * (stride + 1),
    tolerance=0.0,
    source=GUIDE,
)
def coalescing(rng: Any, *, n: int, stride: int) -> Any:
    """Copy the first field out of n records of ``stride`` floats; stride 1 is coalesced.

    The kernels are the same for every stride: what ``field[i] = record[i].x`` compiles to when
    the fields lie in records (array of structs) and when each field has its own array.
    """
    return rng.randn(n, stride), rng.empty(n)


@coalescing.reference
def _reference(records: Any, field: Any) -> Any:
    """Gather by flat index: independent of views, strides and kernels."""
    n, stride = records.shape
    index = torch.arange(n, device=field.device) * stride
    return records.reshape(-1).index_select(0, index)


@coalescing.impl
def _torch(records: Any, field: Any) -> None:
    field.copy_(records[:, 0])


coalescing.impl(lambda ctx, *, n, stride: kernels.launch(n, stride), name="triton", needs=TRITON)


@coalescing.impl(needs=[cuda()])
def _cuda(ctx: Any, *, n: int, stride: int) -> Any:
    kernel = load(ctx, __file__, "take_field", THREADS=THREADS, ITEMS=ITEMS, STRIDE=stride)
    blocks = -(-n // (THREADS * ITEMS))
    return lambda records, field: kernel(blocks, THREADS, records, field, n)


CLAIMS = tuple(
    Claim(
        name=f"coalesced_4x_over_stride_{stride}",
        case="coalescing",
        faster={"stride": 1},
        than={"stride": stride},
        # (8 * 4n read + 4n written) / (4n + 4n) = 4.5 with every sector used for one float.
        by=4.0,
        source=f"{GUIDE}; from 8 floats on each thread has its own segment, 1/8 of it useful",
        at={"n": (N,), "impl": ("triton", "cuda")},
    )
    for stride in (8, 32)
)
