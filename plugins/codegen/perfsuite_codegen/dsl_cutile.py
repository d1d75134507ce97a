"""Kernels in cuTile, compiled by tileiras."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="valid-type"
import io
from importlib import import_module
from typing import Any

from perfsuite_codegen.compiling import Binary

# cuTile is not there on every machine.
ct: Any = import_module("cuda.tile")
compilation: Any = import_module("cuda.tile.compilation")
Size = ct.Constant[int]


@ct.kernel
def add(a, b, c, COLUMNS: Size):
    """Write one tile of a + b a block."""
    i = ct.bid(0)
    left = ct.load(a, index=(i,), shape=(COLUMNS,))
    right = ct.load(b, index=(i,), shape=(COLUMNS,))
    ct.store(c, index=(i,), tile=left + right)


@ct.kernel
def softmax(x, y, COLUMNS: Size):
    """Write the softmax of one row a block."""
    row = ct.bid(0)
    values = ct.load(x, index=(row, 0), shape=(1, COLUMNS))
    grown = ct.exp(values - ct.max(values, axis=1, keepdims=True))
    ct.store(y, index=(row, 0), tile=grown / ct.sum(grown, axis=1, keepdims=True))


@ct.kernel
def matmul(a, b, c, ROWS: Size, COLUMNS: Size, DEPTH: Size):
    """Write one tile of a @ b a block."""
    i, j = ct.bid(0), ct.bid(1)
    total = ct.full((ROWS, COLUMNS), 0, ct.float32)
    for k in range(ct.num_tiles(a, axis=1, shape=(ROWS, DEPTH))):
        left = ct.load(a, index=(i, k), shape=(ROWS, DEPTH))
        right = ct.load(b, index=(k, j), shape=(DEPTH, COLUMNS))
        total = ct.mma(left, right, total)
    ct.store(c, index=(i, j), tile=total)


def compile_kernel(kernel: str, target: str) -> Binary:
    """Return the machine code of a kernel for sm_90a, sm_100a; tileiras itself takes no ``a``."""
    half, single = ct.float16, ct.float32
    function, arrays, sizes = {
        "add": (add, [(single, 1)] * 3, (1024,)),
        "softmax": (softmax, [(single, 2)] * 2, (1024,)),
        "matmul": (matmul, [(half, 2), (half, 2), (single, 2)], (128, 128, 64)),
    }[kernel]
    parameters = [_array(dtype, rank) for dtype, rank in arrays]
    parameters += map(compilation.ConstantConstraint, sizes)
    convention = compilation.CallingConvention.cutile_python_v1()
    signature = compilation.KernelSignature(parameters, convention, symbol=kernel)
    image = io.BytesIO()
    compilation.export_kernel(
        function, [signature], image, gpu_code=target.removesuffix("a"), output_format="cubin"
    )
    return Binary(image.getvalue(), kernel, 0)


def _array(dtype: Any, rank: int) -> Any:
    """Describe a contiguous array that overlaps no other; rows and sizes are multiples of 16."""
    return compilation.ArrayConstraint(
        dtype,
        rank,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(None,) * (rank - 1) + (1,),
        stride_divisible_by=(16,) * (rank - 1) + (1,),
        shape_divisible_by=16,
        base_addr_divisible_by=16,
    )
