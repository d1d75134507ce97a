"""Prefix sums, sorted keys, and the largest of many: what libraries are made for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import perfsuite

Launch = Callable[..., Any]

K = 64
# Two short kernels follow the one that looks for the largest: of 2^26 they were a seventh of it.
SORT_N, LARGE_N, TOP_N = 2**24, 2**26, 2**28
# No multiple of a tile or vector.
ODD_N = LARGE_N + 3
SMALL_N = 2**18
IMPLEMENTATIONS = {
    "scan": ("torch", "cupy", "triton"),
    "sort": ("torch", "cupy"),
    "topk": ("torch", "triton"),
}
# Elements of a row of the reference's prefix sums.
ROW = 256
# Bytes an element that torch takes beside input and result: prefix sums, thrice, in float64;
# a sort's keys and 64-bit places, from one buffer to another.
REFERENCE_BYTES = {"scan": 26, "sort": 33, "topk": 33}


def _is_listed(*, op: str, n: int, impl: str) -> bool:
    if impl not in IMPLEMENTATIONS[op]:
        return False
    if n == SMALL_N:
        return impl == "torch"
    return n in {"scan": (ODD_N, LARGE_N), "sort": (SORT_N,), "topk": (TOP_N,)}[op]


def _work(*, op: str, n: int, impl: str) -> perfsuite.Work:
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * (K if op == "topk" else n))


def _memory_bytes(*, op: str, n: int, impl: str) -> int:
    return (2 * 4 + REFERENCE_BYTES[op]) * n


@perfsuite.case(
    axes={
        "op": ["scan", "sort", "topk"],
        "n": [SORT_N, ODD_N, TOP_N],
        "impl": ["torch", "cupy", "triton"],
    },
    smoke={"op": ["scan", "topk"], "n": [SMALL_N]},
    full={"op": ["scan"], "n": [LARGE_N]},
    only=_is_listed,
    full_only=[{"n": [SMALL_N]}],
    needs=[
        perfsuite.cuda().when(impl=["cupy", "triton"]),
        perfsuite.package("cupy").when(impl="cupy"),
        perfsuite.package("triton").when(impl="triton"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["primitives"],
    source="Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, "
    "NVIDIA, 2016; CUB, DeviceScan and DeviceRadixSort",
)
def scan_sort_topk(ctx: Any, *, op: str, n: int, impl: str) -> perfsuite.Workload:
    """Scan n int32, sort n int32, or find the 64 largest of n float32 in falling order.

    cupy goes to CUB. triton scans in one pass with decoupled look-back; for the largest it notes
    the maximum of each block of 32768, and searches again only blocks above what 64 maxima reach.
    On an H200 its scan takes about 139 us, 91 % of a copy's rate: each tile waits in registers
    for the sum before it, which reaches it through L2 a microsecond after it was known, and
    meanwhile asks for nothing. Blocks that stay, with the next tiles on their way to
    shared memory (TMA) while one warp looks back, took 217 us at best.
    """
    references: dict[str, Launch] = {"scan": _scanned, "sort": _sorted, "topk": _largest}
    wrongs = {"scan": _without_carry, "sort": _as_unsigned, "topk": _without_tail}
    return perfsuite.Workload(
        fn=_launch(ctx, op, n, impl),
        make_inputs=lambda rng: _inputs(rng, op, n),
        reference=references[op],
        wrong=wrongs[op],
        tolerance=0.0,
        # CuPy takes memory from a pool of its own while it runs.
        captures=impl != "cupy",
    )


def _inputs(rng: Any, op: str, n: int) -> tuple[Any, Any]:
    if op == "topk":
        x = rng.randn(n)
        x[-1] = 100.0
        return x, rng.empty(K)
    if op == "scan":
        return rng.randint(1, 32, n), rng.empty(n, dtype="int32")
    return rng.randint(-(2**31), 2**31 - 1, n), rng.empty(n, dtype="int32")


def _launch(ctx: Any, op: str, n: int, impl: str) -> Launch:
    import torch

    if impl == "cupy":
        return _cupy(op)
    if impl == "triton":
        from perfsuite_memory import scan_sort_topk_triton, topk_triton

        def zeros(count: int, *, dtype: str) -> Any:
            return torch.zeros(count, dtype=getattr(torch, dtype), device=ctx.place)

        if op == "topk":
            return topk_triton.top(n, K, zeros)
        words = scan_sort_topk_triton.state_words(n)
        return scan_sort_topk_triton.scan(n, zeros(words, dtype="int64"))
    launches: dict[str, Launch] = {
        "scan": lambda x, out: torch.cumsum(x, 0, dtype=torch.int32, out=out),
        "sort": lambda x, out: torch.sort(x).values,
        "topk": lambda x, out: torch.topk(x, K).values,
    }
    return launches[op]


def _cupy(op: str) -> Launch:
    import torch

    # A stub-less package that few machines have.
    cupy: Any = import_module("cupy")

    def launch(x: Any, out: Any) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            theirs = cupy.asarray(out)
            if op == "scan":
                cupy.cumsum(cupy.asarray(x), dtype=cupy.int32, out=theirs)
            else:
                theirs[...] = cupy.asarray(x)
                theirs.sort()

    return launch


def _scanned(x: Any, out: Any) -> Any:
    return _prefixes(x.double())


def _prefixes(x: Any) -> Any:
    """Multiply rows of 256 by a triangle of ones, and add what the rows before them come to."""
    import torch

    if len(x) <= ROW:
        return x @ torch.ones(len(x), len(x), dtype=x.dtype, device=x.device).triu()
    rows = torch.nn.functional.pad(x, (0, -len(x) % ROW)).view(-1, ROW)
    within = rows @ torch.ones(ROW, ROW, dtype=x.dtype, device=x.device).triu()
    sums = within[:, -1]
    within += (_prefixes(sums) - sums)[:, None]
    return within.reshape(-1)[: len(x)]


def _sorted(x: Any, out: Any) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.sort(x.cpu().numpy()))


def _largest(x: Any, out: Any) -> Any:
    return x.sort(descending=True).values[:K]


def _without_carry(x: Any, out: Any) -> None:
    """Leave what came before the second half out of it: a tile looked back too early."""
    half = len(x) // 2
    out[:half] = x[:half].cumsum(0)
    out[half:] = x[half:].cumsum(0)


def _as_unsigned(x: Any, out: Any) -> Any:
    """Sort by the bits alone: the sign bit was not turned for the radix sort."""
    bits = (x.long() & 0xFFFFFFFF).sort().values
    return (bits - ((bits >> 31) << 32)).int()


def _without_tail(x: Any, out: Any) -> Any:
    """Look at whole tiles only."""
    return x[: (len(x) - 1) // 1024 * 1024].topk(K).values
