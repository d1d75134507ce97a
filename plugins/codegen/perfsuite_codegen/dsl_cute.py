"""Kernels in CuTe DSL, compiled by the compiler that it brings."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import shlex
import tempfile
from importlib import import_module
from typing import Any

from perfsuite_codegen.compiling import Binary

# CuTe DSL is not there on every machine.
cutlass: Any = import_module("cutlass")
cute: Any = import_module("cutlass.cute")
hopper: Any = import_module("cutlass.utils.hopper_helpers")
memory: Any = import_module("cutlass.memory")
runtime: Any = import_module("cutlass.cute.runtime")
tensor_utils: Any = import_module("cutlass.tensor_utils")
warpgroup: Any = import_module("cutlass.cute.nvgpu.warpgroup")
COLUMNS = 1024
# Numbers that a thread moves at once, and rounds of a warp over a row.
WIDTH, ROUNDS = 4, 8
# Rows, columns and depth of a matrix product's tile, and what its operands take in fp16.
TILE = (64, 128, 64)
SHARED = 2 * 64 * (64 + 128)


@cute.kernel
def _add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    left, right, out = (cute.zipped_divide(each, (WIDTH,)) for each in (a, b, c))
    at = (None, block * 256 + thread)
    out[at].store(left[at].load() + right[at].load())


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """Write WIDTH elements of a + b a thread."""
    _add(a, b, c).launch(grid=(cute.size(a) // (256 * WIDTH), 1, 1), block=(256, 1, 1))


@cute.kernel
def _softmax(x: cute.Tensor, y: cute.Tensor):
    lane, row = cute.arch.lane_idx(), cute.arch.block_idx()[0]
    source, out = (cute.zipped_divide(each[row, None], (WIDTH,)) for each in (x, y))
    values = cute.make_rmem_tensor((WIDTH, ROUNDS), cutlass.Float32)
    for i in cutlass.range_constexpr(ROUNDS):
        values[None, i].store(source[None, i * 32 + lane].load())
    mine = values.load().reduce(cute.ReductionOp.MAX, -cutlass.Float32.inf, 0)
    top = cute.arch.warp_reduction(mine, cute.arch.fmax)
    grown = cute.math.exp(values.load() - top, fastmath=True)
    mine = grown.reduce(cute.ReductionOp.ADD, 0.0, 0)
    values.store(grown / cute.arch.warp_reduction(mine, lambda one, other: one + other))
    for i in cutlass.range_constexpr(ROUNDS):
        out[None, i * 32 + lane].store(values[None, i].load())


@cute.jit
def softmax(x: cute.Tensor, y: cute.Tensor):
    """Write the softmax of one row a warp."""
    _softmax(x, y).launch(grid=(x.shape[0], 1, 1), block=(32, 1, 1))


@cute.kernel
def _matmul(operands, out: cute.Tensor, mma: cute.TiledMma, layouts):
    thread, (i, j, _) = cute.arch.thread_idx()[0], cute.arch.block_idx()
    room = memory.SmemAllocator()
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float16, num_bits_per_copy=128)
    rows = cute.make_layout((16, 8), stride=(8, 1))
    copy = cute.make_tiled_copy_tv(wide, rows, cute.make_layout((1, 8)))
    mine, part = copy.get_slice(thread), mma.get_slice(thread)
    shared = [
        room.allocate_tensor(cutlass.Float16, each.outer, byte_alignment=1024, swizzle=each.inner)
        for each in layouts
    ]
    tiles = [
        cute.local_tile(each, TILE, (i, j, None), proj=proj)
        for each, proj in zip(operands, ((1, None, 1), (None, 1, 1)), strict=True)
    ]
    left = mma.make_fragment_A(part.partition_A(shared[0]))
    right = mma.make_fragment_B(part.partition_B(shared[1]))
    out = part.partition_C(cute.local_tile(out, TILE, (i, j, None), proj=(1, 1, None)))
    total = mma.make_fragment_C(out)
    total.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    for k in range(cute.size(tiles[0], mode=[2])):
        for tile, room_of in zip(tiles, shared, strict=True):
            source = mine.partition_S(tile[None, None, k])
            cute.copy(copy, source, mine.partition_D(room_of[None, None, 0]))
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        warpgroup.fence()
        at = (None, None, None, 0)
        cute.gemm(mma, total, left[at], right[at], total)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.arch.sync_threads()
    cute.autovec_copy(total, out)


@cute.jit
def matmul(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """Write one tile of a @ b.T a block of one warpgroup."""
    half, row = cutlass.Float16, tensor_utils.LayoutEnum.ROW_MAJOR
    k = cute.nvgpu.OperandMajorMode.K
    mma = hopper.make_trivial_tiled_mma(half, half, k, k, cutlass.Float32, (1, 1, 1), TILE[:2])
    layouts = (
        hopper.make_smem_layout_a(row, TILE, half, 1),
        hopper.make_smem_layout_b(row, TILE, half, 1),
    )
    grid = (a.shape[0] // TILE[0], b.shape[0] // TILE[1], 1)
    _matmul((a, b), c, mma, layouts).launch(grid=grid, block=(128, 1, 1), smem=SHARED)


def compile_kernel(kernel: str, target: str) -> Binary:
    """Return the machine code of a kernel for sm_90a, sm_100a."""
    half, single = cutlass.Float16, cutlass.Float32
    kernels: dict[str, tuple[Any, list[tuple[Any, tuple[int, ...]]]]] = {
        "add": (add, [(single, (1 << 20,))] * 3),
        "softmax": (softmax, [(single, (4096, COLUMNS))] * 2),
        "matmul": (matmul, [(half, (4096, 4096))] * 2 + [(single, (4096, 4096))]),
    }
    function, tensors = kernels[kernel]
    arguments = [_tensor(dtype, shape) for dtype, shape in tensors]
    # It hands an image over only where it also writes it to a folder.
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch={target} --keep-cubin --dump-dir={shlex.quote(folder)}"
        made = cute.compile(function, *arguments, options=options)
    (symbol,) = made.kernel_info
    return Binary(made.__cubin__, symbol, SHARED if kernel == "matmul" else 0)


def _tensor(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Describe an aligned tensor in order of rows, which has no memory."""
    return runtime.make_fake_compact_tensor(
        dtype, shape, stride_order=tuple(reversed(range(len(shape)))), assumed_align=16
    )
