"""The kernels of the cases about access patterns, caches and shared memory, as plain data."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_memory import (
    async_prefetch,
    atomics,
    bank_conflicts,
    l2_sweep,
    pointer_chase,
    readonly_cache,
    spill,
    tiled_matmul,
    vectorized,
)

# Copied from tiled_matmul_triton, which cannot be imported where kernels are only listed.
MATMUL_TILE, MATMUL_DEPTH = 64, 32
# Strides between differ in constants only.
BANKS = (("plain", 1), ("plain", 32), ("padded", 32), ("swizzled", 32), ("vectors", 4))


def kernels() -> list[Kernel]:
    """Return one kernel for each function and options that compile to their own code."""
    return [
        *(
            _cuda(vectorized.SOURCE, f"copy_{impl}", vectorized.options(int(impl == "realigned")))
            for impl in vectorized.WIDTHS
        ),
        *(_bank_conflicts(impl, stride) for impl, stride in BANKS),
        _cuda(l2_sweep.SOURCE, "read_passes", l2_sweep.OPTIONS),
        _cuda(pointer_chase.SOURCE, "touch", pointer_chase.OPTIONS),
        _cuda(pointer_chase.SOURCE, "chase", pointer_chase.OPTIONS),
        *(
            _cuda(tiled_matmul.SOURCE, f"matmul_{impl}", tiled_matmul.options(2048))
            for impl in tiled_matmul.GEOMETRY
        ),
        _cuda(
            tiled_matmul.SOURCE,
            "matmul_registers",
            tiled_matmul.options(tiled_matmul.ODD_N),
            suffix="_odd",
        ),
        _matmul_triton(),
        _cuda(async_prefetch.SOURCE, "filter_sync", async_prefetch.options(1)),
        *(
            _cuda(
                async_prefetch.SOURCE,
                "filter_async",
                async_prefetch.options(stages),
                suffix=f"_{stages}",
            )
            for stages in (1, 2, 3, 4)
        ),
        *(_cuda(atomics.SOURCE, f"count_{impl}", atomics.OPTIONS) for impl in atomics.IMPLS),
        *(
            _cuda(readonly_cache.SOURCE, f"look_up_{impl}", readonly_cache.OPTIONS)
            for impl in readonly_cache.IMPLS
        ),
        *(_cuda(spill.SOURCE, f"center_{impl}", spill.OPTIONS) for impl in spill.GEOMETRY),
    ]


def _cuda(file: Path, function: str, options: tuple[str, ...], *, suffix: str = "") -> Kernel:
    """Return a kernel named for its case and function."""
    name = f"{file.stem}_{function}{suffix}"
    return Kernel(name=name, language="cuda", function=function, file=str(file), options=options)


def _bank_conflicts(impl: str, stride: int) -> Kernel:
    options = bank_conflicts.options(stride)
    return _cuda(bank_conflicts.SOURCE, f"read_{impl}", options, suffix=f"_{stride}")


def _matmul_triton() -> Kernel:
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), "*fp32")
    return Kernel(
        name="tiled_matmul_triton",
        language="triton",
        function="matmul_kernel",
        module="perfsuite_memory.tiled_matmul_triton",
        signature={**pointers, "n": "i32"},
        constants={"TILE": MATMUL_TILE, "DEPTH": MATMUL_DEPTH},
        aligned=(*pointers, "n"),
    )
