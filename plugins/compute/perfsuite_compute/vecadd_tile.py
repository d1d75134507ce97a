"""The first three kernels of every tutorial, in each of the languages for them."""

from functools import partial
from typing import Any

from perfsuite import cuda, operator, package
from perfsuite.gpu import TRITON, Later, torch

ROW = 256


# n is the number of elements, of rows of 256, and the side of a matrix.
@operator(
    smoke=[
        {"op": "add", "n": 2**20 + 3, "impl": "triton"},
        {"op": "rowsum", "n": 4096, "impl": "triton"},
    ],
    nightly=[
        {"op": "add", "n": 2**26 + 3},
        {"op": "rowsum", "n": 4096, "impl": "torch"},
        {"op": "matmul", "n": 256},
    ],
    full=[{"op": "add", "n": 2**20 + 3, "impl": "torch"}, {"op": "rowsum", "n": 10}],
    flops=lambda *, op, n: {"add": n, "rowsum": n * ROW, "matmul": 2 * n**3}[op],
    rate_dtype="fp32",
    # Of sums operands in fp32, and those and the result again in float64; the others are small.
    memory_bytes=lambda n, **_: 36 * n,
    tolerance=0.0,
    tags=["languages"],
    source="row sums of 10 x 256 in tiles: Warp's example, shown at GTC 2025; vector sums and "
    "tiled products: the tutorials of Triton and numba-cuda",
)
def vecadd_tile(rng: Any, *, op: str, n: int) -> Any:
    """Add vectors, sum the rows of a 10 x 256 array or multiply 256 x 256 matrices, in fp32.

    The vector sum is bound by memory, so that the language should not matter. The other two take a
    microsecond or so of work: what is left is the cost of starting a kernel, and a graph hides even
    that of its host. Numbers are small and whole, so that all results are exact.
    """
    shape = {"add": (n,), "rowsum": (n, ROW), "matmul": (n, n)}[op]
    operands = (rng.randint(-8, 9, *shape, dtype="float32") for _ in range(1 + (op != "rowsum")))
    return (*operands, rng.empty(*shape[: 2 if op == "matmul" else 1]))


@vecadd_tile.reference
def _reference(*arrays: Any, op: str) -> Any:
    x, *other = (each.double() for each in arrays[:-1])
    if op == "rowsum":
        return x.cumsum(1)[:, -1]
    return x + other[0] if op == "add" else x @ other[0]


@vecadd_tile.wrong
def _of_another(*arrays: Any, op: str) -> Any:
    """Take y's next element, stop the tree of additions a step early, or b's rows for columns."""
    x, y, *_ = arrays
    if op == "rowsum":
        return x[:, : ROW // 2].sum(1)
    return x + y.roll(1) if op == "add" else x @ y.t()


@vecadd_tile.impl
def _torch(*arrays: Any, op: str) -> Any:
    *operands, out = arrays
    calls = {"add": torch.add, "rowsum": torch.sum, "matmul": torch.mm}
    return calls[op](*operands, **({"dim": 1} if op == "rowsum" else {}), out=out)


@vecadd_tile.impl(needs=TRITON)
def _triton(ctx: Any, *, op: str) -> Any:
    return getattr(Later("perfsuite_compute.vecadd_tile_triton"), op)


@vecadd_tile.impl(needs=[cuda(), package("numba_cuda")], tier="full")
def _numba(ctx: Any, *, op: str) -> Any:
    return Later("perfsuite_compute.vecadd_tile_numba").launch(op)


@vecadd_tile.impl(needs=[cuda(), package("cupy")], tier="full")
def _cupy(ctx: Any, *, op: str) -> Any:
    cupy = Later("cupy")  # it may be missing, and has no types
    call = {"rowsum": partial(cupy.sum, axis=1)}.get(op) or getattr(cupy, op)

    def launch(*tensors: Any) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            *operands, out = map(cupy.asarray, tensors)
            call(*operands, out=out)

    return launch
