"""The kernels about what a multiprocessor does, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_compute import divergence, gemm_ladder, ilp_unroll, occupancy, redundancy


def kernels() -> list[Kernel]:
    """Return one kernel for each set of options that compiles to its own code."""
    return [
        *_chains(),
        *_occupancies(),
        *_paths(),
        *_rotations(),
        *_rungs(),
    ]


def _chains() -> list[Kernel]:
    return [
        _cuda(
            f"fma_chains_{chains}_{unroll}",
            ilp_unroll.SOURCE,
            "fma_chains",
            ilp_unroll.cuda_options(chains, unroll),
        )
        for chains, unroll in ((1, 1), (1, 8), (2, 8), (4, 8), (8, 1), (8, 8))
    ]


def _occupancies() -> list[Kernel]:
    # Those that differ only in what they are launched with are one kernel.
    named = ("block_32", "block_256", "block_1024", "wide_1", "rare_path", "rare_path_bounded")
    shapes = {name: occupancy.IMPLS[name] for name in named}
    return [
        _cuda(f"occupancy_{name}", occupancy.SOURCE, shape.function, shape.options)
        for name, shape in shapes.items()
    ]


def _paths() -> list[Kernel]:
    options = divergence.cuda_options()
    impls = divergence.divergence.implementations
    return [_cuda(f"take_{impl}", divergence.SOURCE, f"take_{impl}", options) for impl in impls]


def _rotations() -> list[Kernel]:
    options = redundancy.cuda_options(32)
    names = redundancy.KERNELS.values()
    return [_cuda(name, redundancy.SOURCE, name, options) for name in names]


def _rungs() -> list[Kernel]:
    hopper: dict[str, Any] = {"targets": ("sm_90a",), "expects": {"sm_90a": "HGMMA"}}
    return [
        _cuda(rung.function, rung.source, rung.function, (), **(hopper if rung.boxes else {}))
        for rung in gemm_ladder.RUNGS.values()
    ]


def _cuda(name: str, file: Path, function: str, options: tuple[str, ...], **fields: Any) -> Kernel:
    return Kernel(
        name=name, language="cuda", function=function, file=str(file), options=options, **fields
    )
