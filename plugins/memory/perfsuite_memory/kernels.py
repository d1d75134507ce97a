"""The pack's kernels as its cases launch them, as plain data: to be compiled where no GPU is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_memory import coalescing, kernels_access, kernels_movement, stream, transpose

# Copied from the Triton modules, which cannot be imported where kernels are only listed; the
# tests hold them equal.
STREAM_BLOCK, STREAM_WARPS = 4096, 8
FIELD_BLOCK = 1024
TRANSPOSE_TILE, TRANSPOSE_WARPS = 64, 8
# Partial sums of an H200: stream.BLOCKS_PER_SM for each of 132 SMs, to the next power of two.
FINISH_BLOCK = 2048
_STRIDES = (1, 2, 8, 32)
_FLOATS = "*fp32"


def kernels() -> list[Kernel]:
    """Return one kernel for each operation, stride and layout that compiles to its own code."""
    return [
        *(_stream_cuda(op) for op in stream.INPUTS),
        *(_stream_map(op) for op in stream.INPUTS if op not in stream.REDUCTIONS),
        *(_stream_reduce(op) for op in stream.REDUCTIONS),
        _stream_finish(),
        *(_field_cuda(stride) for stride in _STRIDES),
        *(_field_triton(stride) for stride in _STRIDES),
        *(_transpose_cuda(impl, vectors=1) for impl in transpose.KERNELS),
        _transpose_cuda("swizzled", vectors=0),
        _transpose_triton("transpose_triton", aligned=True),
        _transpose_triton("transpose_triton_odd", aligned=False),
        *kernels_access.kernels(),
        *kernels_movement.kernels(),
    ]


def _stream_cuda(op: str) -> Kernel:
    threads, unroll = stream.geometry(op)
    options = (f"-DTHREADS={threads}", f"-DUNROLL={unroll}", f"-DSCALAR={stream.SCALAR}f")
    return _cuda(f"stream_{op}", "stream.cu", f"stream_{op}", options)


def _stream_map(op: str) -> Kernel:
    return _triton(
        f"stream_{op}_triton",
        "stream_triton",
        "map_kernel",
        signature={"x_ptr": _FLOATS, "y_ptr": _FLOATS, "out_ptr": _FLOATS, "n": "i32"},
        constants={"OP": op, "SCALAR": stream.SCALAR, "BLOCK": STREAM_BLOCK},
        num_warps=STREAM_WARPS,
    )


def _stream_reduce(op: str) -> Kernel:
    return _triton(
        f"stream_{op}_triton",
        "stream_triton",
        "reduce_kernel",
        signature={"x_ptr": _FLOATS, "y_ptr": _FLOATS, "partial_ptr": _FLOATS, "n": "i32"},
        constants={"OP": op, "BLOCK": STREAM_BLOCK},
        num_warps=STREAM_WARPS,
    )


def _stream_finish() -> Kernel:
    return _triton(
        "stream_finish_triton",
        "stream_triton",
        "finish_kernel",
        signature={"partial_ptr": _FLOATS, "out_ptr": _FLOATS, "count": "i32"},
        constants={"BLOCK": FINISH_BLOCK},
    )


def _field_cuda(stride: Any) -> Kernel:
    fixed = (f"-DTHREADS={coalescing.THREADS}", f"-DITEMS={coalescing.ITEMS}")
    options = (*fixed, f"-DSTRIDE={stride}")
    return _cuda(f"take_field_{stride}", "coalescing.cu", "take_field", options)


def _field_triton(stride: Any) -> Kernel:
    return _triton(
        f"take_field_{stride}_triton",
        "coalescing_triton",
        "take_field_kernel",
        signature={"record_ptr": _FLOATS, "field_ptr": _FLOATS, "n": "i32"},
        constants={"STRIDE": stride, "BLOCK": FIELD_BLOCK},
    )


def _transpose_cuda(impl: str, *, vectors: int) -> Kernel:
    name = f"transpose_{impl}" + ("" if vectors else "_odd")
    return _cuda(name, "transpose.cu", f"transpose_{impl}", (f"-DVECTORS={vectors}",))


def _transpose_triton(name: str, *, aligned: bool) -> Kernel:
    pointers = ("in_ptr", "out_ptr")
    return _triton(
        name,
        "transpose_triton",
        "transpose_kernel",
        signature={"in_ptr": _FLOATS, "out_ptr": _FLOATS, "rows": "i32", "columns": "i32"},
        constants={"TILE": TRANSPOSE_TILE},
        aligned=(*pointers, "rows", "columns") if aligned else pointers,
        num_warps=TRANSPOSE_WARPS,
    )


def _cuda(name: str, file: str, function: str, options: tuple[str, ...]) -> Kernel:
    path = str(Path(__file__).with_name(file))
    return Kernel(name=name, language="cuda", function=function, file=path, options=options)


def _triton(name: str, module: str, function: str, **fields: Any) -> Kernel:
    # Sizes of these cases are multiples of 16, which Triton's launcher finds out by itself.
    fields.setdefault("aligned", tuple(fields["signature"]))
    module = f"perfsuite_memory.{module}"
    return Kernel(name=name, language="triton", function=function, module=module, **fields)
