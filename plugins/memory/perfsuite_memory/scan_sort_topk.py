"""Prefix sums, sorted keys, and the largest of many: what libraries are made for."""

from functools import partial
from typing import Any

from perfsuite import cuda, operator, package
from perfsuite.gpu import TRITON, Later, torch

K = 64
# Two short kernels follow the one that looks for the largest: of 2^26 they were a seventh of it.
SORT_N, LARGE_N, TOP_N = 2**24, 2**26, 2**28
# Rows of one batch, of 131,072 logits each.
TOP_ROWS, TOP_ROWS_N = 256, 2**25
# No multiple of a tile or vector.
ODD_N = LARGE_N + 3
# Elements of a row of the reference's prefix sums.
ROW = 256
# Bytes an element that torch takes beside input and result: prefix sums, thrice, in float64;
# a sort's keys and 64-bit places, from one buffer to another.
REFERENCE_BYTES = {"scan": 26, "sort": 33, "topk": 33, "topk_rows": 33}


@operator(
    nightly=[
        {"op": "scan", "n": ODD_N, "impl": ["torch", "cupy", "triton"]},
        {"op": "sort", "n": SORT_N, "impl": ["torch", "cupy"]},
        {"op": "topk", "n": TOP_N, "impl": ["torch", "triton"]},
        {"op": "topk_rows", "n": TOP_ROWS_N, "impl": "torch"},
    ],
    full=[
        {"op": "scan", "n": LARGE_N, "impl": ["torch", "cupy", "triton"]},
        {"op": ["scan", "topk"], "n": 2**18, "impl": "torch"},
    ],
    memory_bytes=lambda op, n, impl: (2 * 4 + REFERENCE_BYTES[op]) * n,
    tolerance=0.0,
    # CuPy takes memory from a pool of its own while it runs.
    captures=lambda *, impl: impl != "cupy",
    tags=["primitives"],
    source="Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, "
    "NVIDIA, 2016; CUB, DeviceScan and DeviceRadixSort",
)
def scan_sort_topk(rng: Any, *, op: str, n: int) -> Any:
    """Scan n int32, sort n int32, or find the 64 largest of n float32 in falling order.

    topk_rows finds them in each of 256 rows, n floats in all, as a sampler does of logits. cupy
    goes to CUB. triton scans in one pass with decoupled look-back; for the largest it notes
    the maximum of each block of 32768, and searches again only blocks above what 64 maxima reach.
    On an H200 its scan takes about 139 us, 91 % of a copy's rate: each tile waits in registers
    for the sum before it, which reaches it through L2 a microsecond after it was known, and
    meanwhile asks for nothing. Blocks that stay, with the next tiles on their way to
    shared memory (TMA) while one warp looks back, took 217 us at best.
    """
    if op.startswith("topk"):
        x = rng.randn(n) if op == "topk" else rng.randn(TOP_ROWS, n // TOP_ROWS)
        x[..., -1] = 100.0
        return x, rng.empty(*x.shape[:-1], K)
    low, high = (1, 32) if op == "scan" else (-(2**31), 2**31 - 1)
    return rng.randint(low, high, n), rng.empty(n, dtype="int32")


@scan_sort_topk.reference
def _reference(x: Any, out: Any, *, op: str) -> Any:
    if op == "scan":
        return _prefixes(x.double())
    if op.startswith("topk"):
        return x.sort(descending=True).values[..., :K]
    return torch.from_numpy(Later("numpy").sort(x.cpu().numpy()))


def _prefixes(x: Any) -> Any:
    """Multiply rows of 256 by a triangle of ones, and add what the rows before them come to."""
    size = min(len(x), ROW)
    triangle = torch.ones(size, size, dtype=x.dtype, device=x.device).triu()
    if len(x) <= ROW:
        return x @ triangle
    within = torch.nn.functional.pad(x, (0, -len(x) % ROW)).view(-1, ROW) @ triangle
    sums = within[:, -1]
    within += (_prefixes(sums) - sums)[:, None]
    return within.reshape(-1)[: len(x)]


@scan_sort_topk.wrong
def _mistaken(x: Any, out: Any, *, op: str) -> Any:
    """Look back too early; sort without the sign bit turned; leave out the last element."""
    if op == "scan":
        return torch.cat([half.cumsum(0) for half in x.chunk(2)]).int()
    if op.startswith("topk"):
        return x[..., :-1].topk(K).values
    return torch.cat((x[x >= 0].sort().values, x[x < 0].sort().values))


@scan_sort_topk.impl
def _torch(ctx: Any, *, op: str) -> Any:
    launches: dict[str, Any] = {
        "scan": lambda x, out: torch.cumsum(x, 0, dtype=torch.int32, out=out),
        "sort": lambda x, out: torch.sort(x).values,
        "topk": lambda x, out: torch.topk(x, K).values,
    }
    return launches[op.removesuffix("_rows")]


@scan_sort_topk.impl(needs=[cuda(), package("cupy")])
def _cupy(ctx: Any, *, op: str) -> Any:
    cupy = Later("cupy")  # a stub-less package that few machines have

    def launch(x: Any, out: Any) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            theirs = cupy.asarray(out)
            if op == "scan":
                cupy.cumsum(cupy.asarray(x), dtype=cupy.int32, out=theirs)
            else:
                theirs[...] = cupy.asarray(x)
                theirs.sort()

    return launch


@scan_sort_topk.impl(needs=TRITON)
def _triton(ctx: Any, *, op: str, n: int) -> Any:
    zeros = partial(torch.zeros, device=ctx.place)
    if op == "topk":
        return Later("perfsuite_memory.topk_triton").top(n, K, partial(zeros, dtype=torch.int32))
    scans = Later("perfsuite_memory.scan_sort_topk_triton")
    return scans.scan(n, zeros(scans.state_words(n), dtype=torch.int64))
