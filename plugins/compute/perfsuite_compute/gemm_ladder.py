"""One multiplication, rung by rung: a loop, tiles, registers, tensor cores, a pipeline, roles."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import matmul64, sm_count, tensor_map


@dataclass(frozen=True, slots=True)
class Rung:
    """How a kernel is launched: a block of so many threads makes ``tile`` x ``tile`` of c.

    ``boxes`` of a rung that copies by TMA are the rows of a and b that one copy takes; it has a
    block for each SM, which takes tiles of ``tile`` x ``columns`` until none is left.
    """

    file: str
    function: str
    tile: int
    threads: tuple[int, ...]
    shared_bytes: int = 0
    columns: int = 0
    boxes: tuple[int, int] | None = None

    def grid(self, m: int, n: int) -> tuple[int, ...]:
        """Return a block for each tile, in one dimension where the kernel orders them itself."""
        down, across = -(-m // self.tile), -(-n // (self.columns or self.tile))
        return (across * down,) if self.shared_bytes else (across, down)


RUNGS = {
    "loop": Rung("gemm_ladder.cu", "gemm_loop", 32, (32, 32)),
    "shared": Rung("gemm_ladder.cu", "gemm_shared", 32, (32, 32)),
    "register": Rung("gemm_ladder.cu", "gemm_register", 128, (256,)),
    "wmma": Rung("gemm_wmma.cu", "gemm_wmma", 128, (256,)),
    # Three slots of 32 KiB and their alignment.
    "mma_sync": Rung("gemm_pipeline.cu", "gemm_pipeline", 128, (128,), 3 * 2**15 + 128),
    # Four slots of 48 KiB and their alignment.
    "wgmma": Rung(
        "gemm_wgmma.cu", "gemm_wgmma", 128, (384,), 4 * 3 * 2**14 + 1024, 256, boxes=(128, 64)
    ),
}
_BEATS = {
    "register": Beats(
        "shared",
        2.5,
        "S. Boehm, 'How to Optimize a CUDA Matmul Kernel' (2022), fp32: tiles in shared "
        "memory 12.8 % of cuBLAS, 2D tiles in registers 68.7 %, a ratio of 5.4; half is asked for",
        at={"size": 2048},
    ),
    "wmma": Beats(
        "register",
        3.0,
        "NVIDIA H200 datasheet: 989 TFLOP/s dense bf16, 67 fp32, a ratio of 14.8; three is "
        "asked for, since a kernel that waits at every step reaches a small share of the former",
        at={"size": 2048},
        needs=(arch("sm_90"),),
    ),
    "wgmma": Beats(
        "compute.gemm[dtype=bf16,m={size},n={size},k={size},impl=torch]",
        0.75,
        "P. Shankhdhar, fast.cu, README: on an H100, bf16, 763 TFLOP/s where cuBLAS has 716 (4096 "
        "cubed), 808 where it has 795 (8192 cubed), with clusters and an overlapped store besides",
        at={"size": (4096, 8192)},
    ),
}


# Each rung where it takes some milliseconds at most, and beside its neighbours. 2040 and 1032 are
# multiples of 8, as rows must be, and of no tile.
@operator(
    smoke={"size": 2040, "impl": "wgmma"},
    nightly=[
        {"size": 2048, "impl": ["loop", "shared", "register", "wmma"]},
        {"size": 4096, "impl": ["mma_sync", "wgmma"]},
    ],
    full=[
        {"size": 1032, "impl": list(RUNGS)},
        {"size": 8192, "impl": ["wmma", "mma_sync", "wgmma"]},
    ],
    needs=(cuda(), arch("sm_80+")),
    # The same for all: the operands are bf16, whatever a rung multiplies them with.
    rate_dtype="bf16",
    tags=["tensor-cores", "tiling"],
    source="tiling, tensor cores and pipelines: AI Systems Performance Engineering, chapters 5 to "
    "9; S. Boehm, 'How to Optimize a CUDA Matmul Kernel' (2022)",
)
def gemm_ladder(rng: Any, *, size: int) -> Any:
    """Multiply two square bf16 matrices, c = a b, all row-major, with fp32 sums.

    ``loop`` reads both operands from global memory for every product; ``shared`` has a tile of each
    in shared memory; ``register`` has 64 sums a thread. These three are on CUDA cores and widen to
    fp32. ``wmma`` multiplies squares of 16 on tensor cores, from tiles that wait for global memory
    at every step but for what registers hold; ``mma_sync`` has three steps on their way (cp.async)
    and no padding or conflicts (ldmatrix, swizzled). ``wgmma`` is Hopper's own: TMA copies whole
    boxes, which one warpgroup does nothing but start, while two multiply 64 x 256 an instruction
    from shared memory, tile after tile. The end of the ladder is cuBLAS, in ``gemm``. What the last
    rung's parts are worth, ``wgmma_gemm`` and ``warp_specialization`` of the hopper pack tell.

    On an H200 ``wgmma`` took 40.0 us at 2040, and cuBLAS 24.0 at 2048 (in ``gemm``). Few SMs idle:
    16 x 8 tiles of 128 x 256 are 128 for 132 SMs, of which 97 % can be used at most. But each SM
    has one tile only, so that nothing else goes on while its first slots fill and while its sums
    are stored; and rows of 4080 bytes start within a line of 128, so that each row of a box, as
    long as a line, lies in two.
    """
    a, b = (rng.randn(size, size, dtype="bfloat16") for _ in range(2))
    return a, b, rng.empty(size, size, dtype="bfloat16")


gemm_ladder.reference(lambda a, b, c: matmul64(a, b))


# Round the loop over k down to whole steps of 64, less one.
gemm_ladder.wrong(lambda a, b, c: a[:, :-64] @ b[:-64])


def _rung(ctx: Any, *, impl: str) -> Any:
    rung = RUNGS[impl]
    kernel = ctx.load_cuda(Path(__file__).with_name(rung.file), rung.function)
    blocks = sm_count() if rung.boxes else 0

    def launch(a: Any, b: Any, c: Any) -> None:
        m, n = c.shape
        grid, operands = rung.grid(m, n), (a, b)
        if rung.boxes:
            grid = (min(blocks, *grid),)
            operands = tuple(map(tensor_map, operands, rung.boxes))
        sizes = (m, n, a.shape[1])
        kernel(grid, rung.threads, *operands, c, *sizes, shared_bytes=rung.shared_bytes)

    return launch


for _name, _each in RUNGS.items():
    _needs = (arch("sm_90"),) if _each.boxes else ()
    gemm_ladder.impl(_rung, name=_name, needs=_needs, beats=_BEATS.get(_name, ()))
