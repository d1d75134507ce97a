"""A linear layer with few rows: the weights are read once, and nothing else takes time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Work, Workload, cuda, package

# (n, k) of Llama-3.1-8B: the gate and up projections as one, and the down projection; the latter
# with three outputs more, which fill no tile; and one for a CPU.
_SHAPES = ((28672, 4096), (4096, 14336), (4099, 14336), (2048, 2048))
_ODD = 4099
_ROWS_OF_A_BLOCK = 8


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    is_shape = (n, k) in _SHAPES and (m == 1 or n != _ODD)
    return is_shape and (m == 1 or impl != "cuda")


def _work(m: int, n: int, k: int, impl: str) -> Work:
    return Work(
        read_bytes=2 * (n * k + m * k),
        write_bytes=2 * m * n,
        flops=2 * m * n * k,
        rate_dtype="bf16",
    )


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_compute.reference import matmul_bytes

    return 2 * (n * k + m * k + 2 * m * n) + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [1, 16],
        "n": [4096, _ODD],
        "k": [14336],
        "impl": ["torch", "triton", "cuda"],
    },
    smoke={"m": [1], "n": [2048], "k": [2048]},
    full={"m": [1, 4, 16, 64], "n": [4096, _ODD, 28672], "k": [14336, 4096]},
    only=_is_asked,
    full_only=[{"k": [2048], "impl": ["torch"]}, {"n": [_ODD], "impl": ["torch"]}],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        cuda().when(impl=("triton", "cuda")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["decoding", "split-k"],
    source="decoding is bound by memory: chapter 10 of the book; split-K: Osama et al., Stream-K",
)
def gemv_skinny(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply m rows of x by the transpose of w [n, k], as a linear layer does, in bf16.

    Each weight is read once and used m times: below some 200 rows the time is that of the reading.
    ``torch`` is cuBLAS, which has tiles of outputs too few for all multiprocessors where n is
    small. ``triton`` splits k so that there are programs for all of them; ``cuda`` has a warp for
    each output and no tensor cores, which one row does not need. For 4096 outputs ``cuda`` took
    about 28 us on an H200 (95 % of the ceiling), the other two about 31 (83, 85 %): so short a
    kernel spends the rest on starting, filling its SMs and draining them.
    """

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        x, w = rng.randn(m, k, dtype="bfloat16"), rng.randn(n, k, dtype="bfloat16")
        return x, w, rng.empty(m, n, dtype="bfloat16")

    return Workload(
        fn=_launch_of(ctx, m, n, k, impl),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=_without_last_part,
    )


def _launch_of(ctx: Any, m: int, n: int, k: int, impl: str) -> Callable[..., None]:
    if impl == "triton":
        return _launch_triton(ctx, m, n, k)
    if impl == "cuda":
        source = Path(__file__).with_suffix(".cu")
        run = ctx.load_cuda(source, "gemv_rows", options=cuda_options(n, k))
        blocks = -(-n // _ROWS_OF_A_BLOCK)
        return lambda x, w, y: run(blocks, 32 * _ROWS_OF_A_BLOCK, x, w, y)
    return _launch_torch


def cuda_options(n: int, k: int) -> tuple[str, ...]:
    """Return what gemv_skinny.cu is compiled with."""
    return f"-DN={n}", f"-DK={k}"


def _launch_triton(ctx: Any, m: int, n: int, k: int) -> Callable[..., None]:
    import torch

    from perfsuite_compute import skinny_triton

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    programs = skinny_triton.PROGRAMS_PER_SM * sms
    run = skinny_triton.launch(m, n, k, kind="bf16", place=ctx.place, programs=programs)
    return lambda x, w, y: run(x, w, x, y)  # bf16 weights have no scale


def _launch_torch(x: Any, w: Any, y: Any) -> None:
    import torch

    torch.mm(x, w.t(), out=y)


def _reference(x: Any, w: Any, y: Any) -> Any:
    from perfsuite_compute.reference import matmul

    return matmul(x, w.t())


def _without_last_part(x: Any, w: Any, y: Any) -> None:
    """Leave out the last of many parts of k, as a split that rounds its count down does."""
    _launch_torch(x[:, :-64], w[:, :-64], y)


CASES = (gemv_skinny,)
