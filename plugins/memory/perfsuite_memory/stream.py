"""The STREAM operations: what every other memory-bound case is held against."""

from typing import Any

import perfsuite
from perfsuite.gpu import TRITON, Later, load, sm_count, torch

stream_triton = Later("perfsuite_memory.stream_triton")

INPUTS = {"copy": 1, "scale": 1, "add": 2, "triad": 2, "dot": 2, "init": 0, "read": 1}
FLOPS = {"scale": 1, "add": 1, "triad": 2, "dot": 2, "read": 1}
REDUCTIONS = ("dot", "read")
SCALAR = 3.0
# The largest: what starts and ends a launch counts least.
CEILING_N = 2**28
# No multiple of a vector. What a tail or a shorter launch costs, few operations show.
ODD_N = 2**26 + 3

# Geometry of stream.cu, threads and vectors of 16 bytes in flight per thread and input. Small
# blocks with one vector each keep a map's accesses nearest to their order: on an H200 a copy of
# 2^28 floats moves 4.27 TB/s with (128, 1), 4.07 with (256, 4). What goes one way only is held up
# by something else: init by starting blocks (3.4 TB/s with (128, 1), 4.65 with (256, 4)), a
# reduction's resident blocks by the loads they have in flight.
BOTH_WAYS = (128, 1)
ONE_WAY = (256, 4)
# The reductions keep every SM full: 2,048 threads with 64 bytes in flight each are four times what
# HBM latency (about 1 us under load) times bandwidth asks of an SM.
BLOCKS_PER_SM = 8
# Elements the reference converts to float64 at a time.
CHUNK = 2**24
FORMULAS: dict[str, Any] = {
    "copy": lambda x: x,
    "scale": lambda x: x * SCALAR,
    "add": lambda x, y: x + y,
    "triad": lambda x, y: x + SCALAR * y,
    "dot": lambda x, y: (x * y).sum(),
    "read": lambda x: x.sum(),
}


@perfsuite.operator(
    smoke=[
        {"op": ["copy", "triad"], "n": 2**22, "impl": "torch"},
        {"op": "copy", "n": 2**22, "impl": "triton"},
    ],
    nightly=[
        {"op": ["copy", "triad", "dot", "init", "read"], "n": CEILING_N},
        {"op": "copy", "n": ODD_N, "impl": ["triton", "cuda"]},
        {"op": "copy", "n": 2**26, "impl": "torch"},
    ],
    full=[
        {"op": ["copy", "triad", "dot"], "n": [2**22, 2**26, ODD_N]},
        {"op": ["scale", "add"], "n": CEILING_N},
    ],
    memory_bytes=lambda op, n, impl: 4 * n * (INPUTS[op] + (op not in REDUCTIONS)),
    work=lambda op, n, impl: perfsuite.Work(
        read_bytes=4 * n * INPUTS[op],
        write_bytes=4 if op in REDUCTIONS else 4 * n,
        flops=n * FLOPS.get(op, 0),
        rate_dtype="fp32" if op in FLOPS else "",
    ),
    # All but triad round once, so they have one right answer; a fused triad rounds once, an
    # unfused one twice.
    tolerance=lambda *, op: None if op == "triad" else 0.0,
    canary={
        "cuda": {"op": "copy", "n": 2**26, "impl": "torch"},
        "cpu": {"op": "copy", "n": 2**22, "impl": "torch"},
    },
    ceilings={
        "hbm": lambda op, n, **_: n == CEILING_N and op in ("copy", "scale", "add", "triad"),
        "hbm_read": lambda op, n, **_: n == CEILING_N and op in REDUCTIONS,
        "hbm_write": lambda op, n, **_: n == CEILING_N and op == "init",
    },
    source="McCalpin, STREAM; Deakin et al., BabelStream (copy, mul, add, triad, dot)",
)
def stream(rng: Any, *, op: str, n: int) -> Any:
    """Move n floats through one operation; what the largest arrays reach is memory's ceiling.

    The best of copy, scale, add and triad is that of what goes both ways (on an H200 add), the best
    of dot and read that of reads, and the best of init that of writes.

    copy o=x, scale o=3x, add o=x+y, triad o=x+3y, dot o=sum(xy), init o=3, read o=sum(x).
    """
    if op not in REDUCTIONS:
        return (*(rng.randn(n) for _ in range(INPUTS[op])), rng.empty(n))
    return (*(whole_numbers(rng, n) for _ in range(INPUTS[op])), rng.empty())


def whole_numbers(rng: Any, n: int) -> Any:
    """Return small floats of both signs, the last one not 0: one missing element shows.

    Every partial sum stays below 2**24, so that float32 adds without error in any order.
    """
    x = rng.randint(-8, 9, n, dtype="float32")
    x[-1] = 8.0
    return x


@stream.reference
def expected(*arrays: Any, op: str) -> Any:
    """Return the result in float64, some of it at a time."""
    *inputs, out = arrays
    if op == "init":
        return torch.full_like(out, SCALAR)
    chunks = zip(*(x.split(CHUNK) for x in inputs), strict=True)
    parts = [FORMULAS[op](*(part.double() for part in chunk)) for chunk in chunks]
    if op in REDUCTIONS:
        return torch.stack(parts).sum()
    return torch.cat([part.float() for part in parts])


@stream.wrong
def _without_the_last(*arrays: Any, op: str) -> Any:
    *inputs, out = arrays
    found = _TORCH[op](*(x[:-1] for x in inputs), out if op in REDUCTIONS else out[:-1])
    return found if op in REDUCTIONS else out


_TORCH: dict[str, Any] = {
    "copy": lambda x, out: out.copy_(x),
    "scale": lambda x, out: torch.mul(x, SCALAR, out=out),
    "add": lambda x, y, out: torch.add(x, y, out=out),
    "triad": lambda x, y, out: torch.add(x, y, alpha=SCALAR, out=out),
    # With out= torch would copy the result once more.
    "dot": lambda x, y, _: torch.dot(x, y),
    "init": lambda out: out.fill_(SCALAR),
    "read": lambda x, out: torch.sum(x, dim=0, out=out),
}


stream.impl(lambda ctx, *, op: _TORCH[op], name="torch")


@stream.impl(needs=TRITON)
def _triton(ctx: Any, *, op: str, n: int) -> Any:
    if op not in REDUCTIONS:
        return stream_triton.map_launch(op, n, scalar=SCALAR)
    blocks = min(BLOCKS_PER_SM * sm_count(), stream_triton.tiles(n))
    return stream_triton.reduce_launch(op, n, partials=torch.empty(blocks, device=ctx.place))


@stream.impl(needs=[perfsuite.cuda()])
def _cuda(ctx: Any, *, op: str, n: int) -> Any:
    threads, unroll = geometry(op)
    macros = {"THREADS": threads, "UNROLL": unroll, "SCALAR": f"{SCALAR}f"}
    kernel = load(ctx, __file__, f"stream_{op}", **macros)
    tiles = -(-n // (4 * threads * unroll))
    if op not in REDUCTIONS:
        return lambda *arrays: kernel(tiles, threads, *arrays, n)
    blocks = min(BLOCKS_PER_SM * sm_count(), tiles)
    partials = torch.empty(blocks, device=ctx.place)
    # The last block of a launch sets it back to 0.
    finished = torch.zeros(1, dtype=torch.int32, device=ctx.place)
    return lambda *arrays: kernel(blocks, threads, *arrays, partials, finished, n)


def geometry(op: str) -> tuple[int, int]:
    """Return threads per block and vectors per thread of an operation in stream.cu."""
    return ONE_WAY if op in (*REDUCTIONS, "init") else BOTH_WAYS
