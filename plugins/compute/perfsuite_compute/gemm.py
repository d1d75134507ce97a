"""Matrix multiplication: CUDA cores, tensor cores, and the library against kernels of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Claim, Need, Work, Workload, cuda, package

# The torch dtype, the bytes of an element, and the relative error where the dtype's own limit does
# not hold: tf32 has fp32's storage and 10 bits of mantissa, an error of 2**-11 for each operand.
_DTYPES = {
    "bf16": ("bfloat16", 2, None),
    "fp32": ("float32", 4, None),
    "tf32": ("float32", 4, 1e-3),
    "fp16": ("float16", 2, None),
    "int8": ("int8", 1, None),
    "fp64": ("float64", 8, None),
}
_IMPLS = {"bf16": ("torch", "triton"), "fp32": ("torch", "cuda_naive", "cuda_tiled")}
# The last three are there for their rate.
_SIZES = {
    "bf16": (1024, 16384),
    "fp32": (512, 4096),
    "tf32": (1024, 4096),
    "fp16": (8192, 8192),
    "int8": (8192, 8192),
    "fp64": (4096, 4096),
}
# The naive kernel takes some 30 ms at 4096 cubed: larger tells nothing more.
_LARGEST_NAIVE = 2048
# Sizes that show what tensor cores reach.
_CEILING_SIZES = {
    "bf16": (4096, 8192),
    "tf32": (4096,),
    **{dtype: _SIZES[dtype][:1] for dtype in ("fp16", "int8", "fp64")},
}


def _is_asked(dtype: str, m: int, n: int, k: int, impl: str) -> bool:
    least, most = _SIZES[dtype]
    is_small = "cuda" not in impl or m <= _LARGEST_NAIVE
    return m == n == k and least <= m <= most and impl in _IMPLS.get(dtype, ("torch",)) and is_small


def _ceiling_of(of: str) -> Callable[..., bool]:
    return lambda dtype, m, **_: dtype == of and m in _CEILING_SIZES[of]


def _work(dtype: str, m: int, n: int, k: int, impl: str) -> Work:
    size = _DTYPES[dtype][1]
    return Work(
        read_bytes=size * (m * k + k * n),
        write_bytes=(4 if dtype == "int8" else size) * m * n,
        flops=2 * m * n * k,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_compute.reference import matmul_bytes

    # An int8's sums, twice, are 8 bytes; an fp64's reference has copies of the operands.
    copies = 6 * 8 * m * n if dtype == "fp64" else 8 * m * n if dtype == "int8" else 0
    own = _DTYPES[dtype][1] * (m * k + k * n + 2 * m * n)
    return own + copies + matmul_bytes(m, n, k)


_NEEDS: tuple[Need, ...] = (
    package("torch"),
    package("triton").when(impl="triton"),
    cuda().when(impl=("triton", "cuda_naive", "cuda_tiled")),
    cuda().when(dtype=("bf16", "tf32", "fp16", "int8", "fp64")),
)


@perfsuite.case(
    axes={
        "dtype": list(_DTYPES),
        "m": [2048, 4096, 8192],
        "n": [2048, 4096, 8192],
        "k": [2048, 4096, 8192],
        "impl": ["torch", "triton", "cuda_naive", "cuda_tiled"],
    },
    smoke={"dtype": ["fp32", "bf16"], "m": [512, 1024], "n": [512, 1024], "k": [512, 1024]},
    full={
        "m": [1024, 2048, 4096, 8192, 16384],
        "n": [1024, 2048, 4096, 8192, 16384],
        "k": [1024, 2048, 4096, 8192, 16384],
    },
    only=_is_asked,
    full_only=[
        {"dtype": ["fp32"], "m": [1024]},
        {"dtype": ["bf16", "tf32"], "m": [2048]},
        {"m": [512], "impl": ["cuda_naive"]},
        {"dtype": ["fp64"]},  # fp64_emulation measures the same at night
    ],
    needs=_NEEDS,
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["tensor-cores", "tiling"],
    canary={
        "cuda": {"dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "impl": "torch"},
        "cpu": {"dtype": "fp32", "m": 512, "n": 512, "k": 512, "impl": "torch"},
    },
    ceilings={dtype: _ceiling_of(dtype) for dtype in _CEILING_SIZES},
    source="tensor cores, mixed precision and shared-memory tiling: chapters 5 and 6 of the book",
)
def gemm(ctx: Any, dtype: str, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply two matrices: c = a b, all row-major, c in the operands' dtype (int32 of int8).

    ``torch`` is cuBLAS: fp32 on the CUDA cores, all else on tensor cores. int8 has int32 sums and
    takes b by columns, as its kernels do; fp16, int8 and fp64 are there for the rate they reach.
    ``triton`` is a persistent kernel that copies tiles in bulk (TMA) into wgmma instructions.
    Against cuBLAS it lacks warp specialisation (the warps that multiply also issue the copies),
    clusters with multicast, and kernels chosen for each shape. ``cuda_naive`` is the kernel that is
    written first, one thread for each element of c; ``cuda_tiled`` works from tiles in shared
    memory and registers, and takes whole tiles only. Both are fp32 on CUDA cores: their ceiling is
    that of ``torch`` in fp32.
    """
    import torch

    name, _, tolerance = _DTYPES[dtype]
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        if dtype == "int8":
            codes = (rng.randint(-127, 128, *shape, dtype=name) for shape in ((m, k), (n, k)))
            return *codes, rng.empty(m, n, dtype="int32")
        return rng.randn(m, k, dtype=name), rng.randn(k, n, dtype=name), rng.empty(m, n, dtype=name)

    return Workload(
        fn=_launch_int8 if dtype == "int8" else _launch_of(ctx, m, n, k, impl),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=_without_last_step,
        tolerance=tolerance,
    )


def _launch_of(ctx: Any, m: int, n: int, k: int, impl: str) -> Callable[..., Any]:
    if impl == "triton":
        from perfsuite_compute.gemm_triton import gemm as launch

        return launch
    if impl == "cuda_naive":
        return _launch_cuda(ctx, m, n, k, kernel="gemm_naive")
    if impl == "cuda_tiled":
        return _launch_cuda(ctx, m, n, k, kernel="gemm_tiled")
    return _launch_torch


def _launch_torch(a: Any, b: Any, c: Any) -> None:
    import torch

    torch.mm(a, b, out=c)


def _launch_int8(a: Any, columns: Any, c: Any) -> None:
    import torch

    torch._int_mm(a, columns.t(), out=c)  # noqa: SLF001 - the only way to cuBLAS's int8


def tile_for(m: int, n: int) -> int:
    """Return the side of gemm_tiled's tiles: those of 128 leave SMs idle below 2048."""
    return 128 if min(m, n) >= 2048 else 64  # noqa: PLR2004


def cuda_options(kernel: str, m: int, n: int, k: int) -> tuple[str, ...]:
    """Return the macros of gemm.cu; gemm_tiled takes whole tiles, of k a multiple of 16."""
    tile = (f"-DTILE={tile_for(m, n)}",) if kernel == "gemm_tiled" else ()
    return (f"-DSIZE_M={m}", f"-DSIZE_N={n}", f"-DSIZE_K={k}", *tile)


def _launch_cuda(ctx: Any, m: int, n: int, k: int, *, kernel: str) -> Callable[..., None]:
    options = cuda_options(kernel, m, n, k)
    run = ctx.load_cuda(Path(__file__).with_name("gemm.cu"), kernel, options=options)
    if kernel == "gemm_naive":
        grid, block = (-(-n // 32), -(-m // 32)), (32, 32)
    else:
        tile = tile_for(m, n)
        grid, block = (n // tile, m // tile), (256, 1)

    def launch(a: Any, b: Any, c: Any) -> None:
        run(grid, block, a, b, c)

    return launch


def _reference(a: Any, b: Any, c: Any) -> Any:
    """Multiply in float64, which sums products of int8 exactly; those of fp64 in two parts."""
    import torch

    from perfsuite_compute import fp64_emulation
    from perfsuite_compute.reference import matmul

    if a.dtype == torch.float64:
        return fp64_emulation.reference(a, b)
    return matmul(a, b.t() if a.dtype == torch.int8 else b)


def _without_last_step(a: Any, b: Any, c: Any) -> None:
    """Leave out the last 64 of k, as a loop that rounds its count down does."""
    import torch

    if a.dtype == torch.int8:
        _launch_int8(a[:, :-64].contiguous(), b[:, :-64].contiguous(), c)
    else:
        _launch_torch(a[:, :-64], b[:-64], c)


CASES: tuple[perfsuite.Case | Claim, ...] = (
    gemm,
    Claim(
        name="gemm_tiling",
        case="gemm",
        faster={"impl": "cuda_tiled"},
        than={"impl": "cuda_naive"},
        by=4.0,
        at={"dtype": ("fp32",), "m": (2048,)},
        needs=(cuda(),),
        source="S. Boehm, 'How to Optimize a CUDA Matmul Kernel' (2022): coalesced 8.5 %, shared "
        "tiles with 2D register tiles 68.7 % of cuBLAS, a ratio of 8.1; half of it is asked for, "
        "since Hopper's larger L1 helps the naive kernel most",
    ),
    Claim(
        name="gemm_tensor_cores",
        case="gemm",
        faster={"dtype": "tf32"},
        than={"dtype": "fp32"},
        by=4.0,
        at={"impl": ("torch",), "m": (4096,)},
        needs=(cuda(), perfsuite.arch("sm_90")),
        source="NVIDIA H200 datasheet: 494.5 TFLOP/s dense tf32, 67 fp32, a ratio of 7.4; four is "
        "asked for, since tensor cores reach a smaller share of their peak",
    ),
    Claim(
        name="gemm_triton_near_cublas",
        case="gemm",
        faster={"impl": "triton"},
        than={"impl": "torch"},
        by=0.8,
        at={"dtype": ("bf16",), "m": (4096, 8192)},
        needs=(cuda(), perfsuite.arch("sm_90")),
        source="Triton tutorial 03, matrix multiplication: 'performance on par with cuBLAS'",
    ),
)
