"""Matrix multiplication: CUDA cores, tensor cores, and the library against kernels of one's own."""

from typing import Any

from perfsuite import Beats, Claim, Regime, Work, Workload, arch, case, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, load, matmul64, torch
from perfsuite_compute import fp64_emulation

kernels = Later("perfsuite_compute.gemm_triton")
_BYTES = {"bf16": 2, "fp32": 4, "tf32": 4, "fp16": 2, "int8": 1, "fp64": 8}
_CUDA_CORES = ["torch", "cuda_naive", "cuda_tiled"]
# Sizes that show what tensor cores reach; fp16 and fp64 are there for their rate. int8 is missing:
# on Hopper the library takes a kernel made for A100, which reaches half of the chip's rate.
_CEILINGS = {"bf16": (4096, 8192), "tf32": (4096,), "fp16": (8192,), "fp64": (4096,)}


def _cubes(*sizes: int, **axes: Any) -> list[dict[str, Any]]:
    return [{**axes, "m": size, "n": size, "k": size} for size in sizes]


def _cube(size: int, dtype: str) -> dict[str, Any]:
    return _cubes(size, dtype=dtype, impl="torch")[0]


def _ceiling_of(of: str) -> Any:
    return lambda dtype, m, **_: dtype == of and m in _CEILINGS[of]


def _work(dtype: str, m: int, n: int, k: int, **_: Any) -> Work:
    size = _BYTES[dtype]
    written = (4 if dtype == "int8" else size) * m * n
    return Work(size * (m * k + k * n), written, 2 * m * n * k, rate_dtype=dtype)


@operator(
    smoke=[
        *_cubes(512, dtype="fp32", impl=["torch", "cuda_tiled"]),
        *_cubes(1024, dtype="bf16", impl=["torch", "triton"]),
        *_cubes(4096, dtype="bf16", impl="torch"),  # the hopper pack compares with it
    ],
    nightly=[
        *_cubes(2048, dtype="fp32", impl=_CUDA_CORES),
        *_cubes(4096, dtype=["fp32", "tf32"], impl="torch"),
        *_cubes(8192, dtype=["fp16", "int8"], impl="torch"),
        *_cubes(4096, 8192, dtype="bf16", impl=["torch", "triton"]),
    ],
    full=[
        # The naive kernel takes some 30 ms at 4096 cubed: larger tells nothing more.
        *_cubes(512, 1024, dtype="fp32", impl=_CUDA_CORES),
        *_cubes(2048, 16384, dtype="bf16", impl=["torch", "triton"]),
        *_cubes(1024, 2048, dtype="tf32", impl="torch"),
        *_cubes(4096, dtype="fp64", impl="torch"),  # fp64_emulation measures the same at night
    ],
    needs=[cuda().when(dtype=("bf16", "tf32", "fp16", "int8", "fp64"))],
    work=_work,
    # Four matrices in the dtype and two in float64; an fp64's reference copies the operands.
    memory_bytes=lambda dtype, m, **_: (104 if dtype == "fp64" else 36) * m * m,
    # tf32 has 10 bits of mantissa, an error of 2**-11 for each operand.
    tolerance=lambda *, dtype: 1e-3 if dtype == "tf32" else None,
    tags=["tensor-cores", "tiling"],
    canary={"cuda": _cube(4096, "bf16"), "cpu": _cube(512, "fp32")},
    ceilings={dtype: _ceiling_of(dtype) for dtype in _CEILINGS},
    source="tensor cores, mixed precision and shared-memory tiling: chapters 5 and 6 of the book",
)
def gemm(rng: Any, *, dtype: str, m: int, n: int, k: int) -> Any:
    """Multiply two matrices: c = a b, all row-major, c in the operands' dtype (int32 of int8).

    ``torch`` is cuBLAS: fp32 on the CUDA cores, all else on tensor cores. Other cases and packs
    compare with its bf16, and do not measure it again. int8 has int32 sums and
    takes b by columns, as its kernels do; fp16, int8 and fp64 are there for the rate they reach.
    That of int8 is the library's, and no ceiling: on an H200 it takes a kernel made for A100, with
    964 TOP/s, 49 % of the datasheet's rate.
    ``triton`` is a persistent kernel that copies tiles in bulk (TMA) into wgmma instructions.
    Against cuBLAS it lacks warp specialisation (the warps that multiply also issue the copies),
    clusters with multicast, and kernels chosen for each shape. ``cuda_naive`` is the kernel that is
    written first, one thread for each element of c; ``cuda_tiled`` works from tiles in shared
    memory and registers, and takes whole tiles only. Both are fp32 on CUDA cores: their ceiling is
    that of ``torch`` in fp32.
    """
    if dtype == "int8":
        a, columns = (rng.randint(-127, 128, *of, dtype=dtype) for of in ((m, k), (n, k)))
        return a, columns.t(), rng.empty(m, n, dtype="int32")
    name = DTYPES[dtype]
    return rng.randn(m, k, dtype=name), rng.randn(k, n, dtype=name), rng.empty(m, n, dtype=name)


@gemm.reference
def _reference(a: Any, b: Any, c: Any, *, dtype: str) -> Any:
    """Multiply in float64, which sums products of int8 exactly; those of fp64 in two parts."""
    return fp64_emulation.reference(a, b) if dtype == "fp64" else matmul64(a, b)


# Leave out the last 64 of k, as a loop that rounds its count down does.
gemm.wrong(lambda a, b, c: matmul64(a[:, :-64], b[:-64]).to(c.dtype))


@gemm.impl
def _torch(ctx: Any, *, dtype: str) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    # The only way to cuBLAS's int8.
    multiply = torch._int_mm if dtype == "int8" else torch.mm  # noqa: SLF001
    return lambda a, b, c: multiply(a, b, out=c)


gemm.impl(
    lambda ctx: kernels.gemm,
    name="triton",
    needs=TRITON,
    beats=Beats(
        "torch",
        0.8,
        "Triton tutorial 03, matrix multiplication: 'performance on par with cuBLAS'",
        at={"dtype": "bf16", "m": (4096, 8192)},
        needs=(arch("sm_90"),),
    ),
)


@gemm.impl(needs=[cuda()])
def _cuda_naive(ctx: Any, *, m: int, n: int, k: int) -> Any:
    run = load(ctx, __file__, "gemm_naive", SIZE_M=m, SIZE_N=n, SIZE_K=k)
    return lambda a, b, c: run((-(-n // 32), -(-m // 32)), (32, 32), a, b, c)


@gemm.impl(
    needs=[cuda()],
    beats=Beats(
        "cuda_naive",
        4.0,
        "S. Boehm, 'How to Optimize a CUDA Matmul Kernel' (2022): coalesced 8.5 %, shared "
        "tiles with 2D register tiles 68.7 % of cuBLAS, a ratio of 8.1; half of it is asked for, "
        "since Hopper's larger L1 helps the naive kernel most",
        at={"dtype": "fp32", "m": 2048},
    ),
)
def _cuda_tiled(ctx: Any, *, m: int, n: int, k: int) -> Any:
    tile = 128 if min(m, n) >= 2048 else 64  # noqa: PLR2004
    # It takes whole tiles, of k a multiple of 16. Those of 128 leave SMs idle below 2048.
    run = load(ctx, __file__, "gemm_tiled", SIZE_M=m, SIZE_N=n, SIZE_K=k, TILE=tile)
    return lambda a, b, c: run((n // tile, m // tile), (256, 1), a, b, c)


@case(
    # No variant of the smoke tier: launches that do not reach the power limit show nothing.
    nightly={"m": 8192},
    needs=(cuda(),),
    work=lambda m: _work(**_cube(m, "bf16")),
    regime=Regime.SUSTAINED,
    tags=["tensor-cores", "power"],
    source="power-capped matrix multiplication, as in training steps; NVML's counter of energy",
)
def gemm_sustained(ctx: Any, *, m: int) -> Workload:
    """Multiply two bf16 matrices of m x m with cuBLAS, one launch right after the other.

    Its clock is held against that of the paced canary of the same run, its energy per launch
    against the baseline: the same cycles at more power are slower training, and no one's code.
    """
    return gemm.build(ctx, **_cube(m, "bf16"))


GEMM_TENSOR_CORES = Claim(
    name="gemm_tensor_cores",
    case="gemm",
    faster={"dtype": "tf32"},
    than={"dtype": "fp32"},
    by=4.0,
    at={"impl": ("torch",), "m": (4096,)},
    needs=(arch("sm_90"),),
    source="NVIDIA H200 datasheet: 494.5 TFLOP/s dense tf32, 67 fp32, a ratio of 7.4; four is "
    "asked for, since tensor cores reach a smaller share of their peak",
)
