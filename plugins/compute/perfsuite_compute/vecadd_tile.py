"""The first three kernels of every tutorial, in each of the languages for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import perfsuite
from perfsuite import Work, Workload, cuda, package

ROW = 256
# n by operation: elements, rows of 256, and the side of a matrix; and the same for a CPU.
_SIZES = {"add": (2**26 + 3, 2**20 + 3), "rowsum": (10, 4096), "matmul": (256,)}


def _is_asked(op: str, n: int, impl: str) -> bool:
    return n in _SIZES[op]


def _work(op: str, n: int, impl: str) -> Work:
    if op == "add":
        return Work(read_bytes=8 * n, write_bytes=4 * n, flops=n, rate_dtype="fp32")
    if op == "rowsum":
        return Work(read_bytes=4 * n * ROW, write_bytes=4 * n, flops=n * ROW, rate_dtype="fp32")
    return Work(read_bytes=8 * n * n, write_bytes=4 * n * n, flops=2 * n**3, rate_dtype="fp32")


def _memory_bytes(op: str, n: int, impl: str) -> int:
    # Operands in fp32, and those and the result again in float64.
    return {"add": 36 * n, "rowsum": 12 * n * ROW + 16 * n, "matmul": 40 * n * n}[op]


@perfsuite.case(
    axes={
        "op": ["add", "rowsum", "matmul"],
        "n": [2**26 + 3, 10, 256],
        "impl": ["torch", "triton"],
    },
    smoke={"op": ["add", "rowsum"], "n": [2**20 + 3, 4096]},
    full={"impl": ["torch", "triton", "numba", "cupy"]},
    only=_is_asked,
    waits=lambda impl, **_: impl == "torch",
    full_only=[{"op": ["rowsum"], "n": [10]}, {"n": [2**20 + 3], "impl": ["torch"]}],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        package("numba_cuda").when(impl="numba"),
        package("cupy").when(impl="cupy"),
        cuda().when(impl=("triton", "numba", "cupy")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["languages"],
    source="row sums of 10 x 256 in tiles: Warp's example, shown at GTC 2025; vector sums and "
    "tiled products: the tutorials of Triton and numba-cuda",
)
def vecadd_tile(ctx: Any, op: str, n: int, impl: str) -> Workload:
    """Add vectors, sum the rows of a 10 x 256 array or multiply 256 x 256 matrices, in fp32.

    The vector sum is bound by memory, so that the language should not matter. The other two take a
    microsecond or so of work: what is left is the cost of starting a kernel, and a graph hides even
    that of its host. Numbers are small and whole, so that all results are exact.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False

    def numbers(rng: Any, *shape: int) -> Any:
        return rng.randint(-8, 9, *shape, dtype="float32")

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        if op == "add":
            return numbers(rng, n), numbers(rng, n), rng.empty(n)
        if op == "rowsum":
            return numbers(rng, n, ROW), rng.empty(n)
        return numbers(rng, n, n), numbers(rng, n, n), rng.empty(n, n)

    return Workload(
        fn=_launch_of(op, impl),
        make_inputs=make_inputs,
        reference=_REFERENCES[op],
        wrong=_WRONG[op],
        tolerance=0.0,
    )


def _launch_of(op: str, impl: str) -> Callable[..., Any]:
    if impl == "torch":
        return _torch(op)
    if impl == "cupy":
        return _cupy(op)
    if impl == "triton":
        from perfsuite_compute import vecadd_tile_triton

        launch: Callable[..., Any] = getattr(vecadd_tile_triton, op)
        return launch
    from perfsuite_compute import vecadd_tile_numba

    return vecadd_tile_numba.launch(op)


def _torch(op: str) -> Callable[..., Any]:
    import torch

    launches: dict[str, Callable[..., Any]] = {
        "add": lambda x, y, out: torch.add(x, y, out=out),
        "rowsum": lambda x, out: torch.sum(x, dim=1, out=out),
        "matmul": lambda a, b, c: torch.mm(a, b, out=c),
    }
    return launches[op]


def _cupy(op: str) -> Callable[..., None]:
    import torch

    cupy: Any = import_module("cupy")  # it may be missing, and has no types
    calls: dict[str, Callable[..., Any]] = {
        "add": lambda x, y, out: cupy.add(x, y, out=out),
        "rowsum": lambda x, out: cupy.sum(x, axis=1, out=out),
        "matmul": lambda a, b, c: cupy.matmul(a, b, out=c),
    }

    def launch(*tensors: Any) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            calls[op](*(cupy.asarray(tensor) for tensor in tensors))

    return launch


_REFERENCES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, out: x.double() + y.double(),
    "rowsum": lambda x, out: x.double().cumsum(1)[:, -1],
    "matmul": lambda a, b, c: a.double() @ b.double(),
}


def _without_last(x: Any, y: Any, out: Any) -> None:
    """Leave what is no whole block untouched."""
    whole = x.numel() // ROW * ROW
    out[:whole] = x[:whole] + y[:whole]


def _without_last_half(x: Any, out: Any) -> None:
    """Stop the tree of additions a step early."""
    out.copy_(x[:, : ROW // 2].sum(1))


def _transposed(a: Any, b: Any, c: Any) -> None:
    """Take b's rows for its columns."""
    c.copy_(a @ b.t())


_WRONG: dict[str, Callable[..., Any]] = {
    "add": _without_last,
    "rowsum": _without_last_half,
    "matmul": _transposed,
}

CASES = (vecadd_tile,)
