"""Kernels in Warp, compiled by the NVRTC that it brings."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="valid-type"
import json
import re
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from perfsuite_codegen.compiling import Binary

# Warp is not there on every machine.
wp: Any = import_module("warp")
COLUMNS = 1024
TILE = 64


@wp.kernel(enable_backward=False, module="unique")
def add(
    a: wp.array(dtype=wp.float32), b: wp.array(dtype=wp.float32), c: wp.array(dtype=wp.float32)
):
    """Write one element of a + b a thread."""
    i = wp.tid()
    c[i] = a[i] + b[i]


@wp.func
def _exp(x: float):
    return wp.exp(x)


@wp.kernel(enable_backward=False, module="unique")
def softmax(x: wp.array2d(dtype=wp.float32), y: wp.array2d(dtype=wp.float32)):
    """Write the softmax of one row a block."""
    row = wp.tid()
    values = wp.tile_load(x[row], shape=COLUMNS)
    top = wp.tile_broadcast(wp.tile_max(values), shape=(COLUMNS,))
    grown = wp.tile_map(_exp, values - top)
    total = wp.tile_broadcast(wp.tile_sum(grown), shape=(COLUMNS,))
    wp.tile_store(y[row], wp.tile_map(wp.div, grown, total))


@wp.kernel(enable_backward=False, module="unique")
def matmul(
    a: wp.array2d(dtype=wp.float16),
    b: wp.array2d(dtype=wp.float16),
    c: wp.array2d(dtype=wp.float32),
):
    """Write one tile of a @ b a block, by the products of cuBLASDx that Warp brings."""
    i, j = wp.tid()
    total = wp.tile_zeros(shape=(TILE, TILE), dtype=wp.float32)
    for k in range(a.shape[1] // TILE):
        left = wp.tile_load(a, shape=(TILE, TILE), offset=(i * TILE, k * TILE))
        right = wp.tile_load(b, shape=(TILE, TILE), offset=(k * TILE, j * TILE))
        wp.tile_matmul(left, right, total)
    wp.tile_store(c, total, offset=(i * TILE, j * TILE))


def compile_kernel(kernel: str, target: str) -> Binary:
    """Return the machine code of a kernel for sm_90a, sm_100a; Warp itself knows no ``a``."""
    wp.config.quiet = True
    module = {"add": add, "softmax": softmax, "matmul": matmul}[kernel].module
    with tempfile.TemporaryDirectory() as folder:
        arch = int(re.sub(r"\D", "", target))
        wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=False)
        (image,) = Path(folder).glob("*.cubin")
        (meta,) = Path(folder).glob("*.meta")
        ((asked, dynamic),) = json.loads(meta.read_text(encoding="utf-8")).items()
        return Binary(image.read_bytes(), asked.removesuffix("_smem_bytes"), dynamic)
