"""The kernels that the pack hands over to be compiled are those that its cases launch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from perfsuite_memory import coalescing, kernels, perf_kernels, stream, transpose

KERNELS = {kernel.name: kernel for kernel in perf_kernels()}


class Loader:
    """A builder's context that notes what is loaded and compiles nothing."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str, tuple[str, ...]]] = []

    def load_cuda(self, path: Path, name: str, *, options: tuple[str, ...]) -> Any:
        """Note what a builder asks for."""
        self.loaded.append((str(path), name, options))
        return SimpleNamespace()


def handed(*names: str) -> list[tuple[str, str, tuple[str, ...]]]:
    found = [KERNELS[name] for name in names]
    return [(kernel.file, kernel.function, kernel.options) for kernel in found]


def test_cuda_kernels_have_the_options_that_cases_load_them_with() -> None:
    pytest.importorskip("torch")
    ctx = Loader()
    maps = [op for op in stream.INPUTS if op not in stream.REDUCTIONS]
    for op in maps:
        stream.stream.build(ctx, op=op, n=2**22, impl="cuda")
    for stride in (1, 32):
        coalescing.coalescing.build(ctx, n=2**22, stride=stride, impl="cuda")
    for n in (4096, 8191):
        transpose.transpose.build(ctx, n=n, impl="swizzled")
    names = [f"stream_{op}" for op in maps]
    names += ["take_field_1", "take_field_32", "transpose_swizzled", "transpose_swizzled_odd"]
    assert ctx.loaded == handed(*names)


def test_reductions_have_the_geometry_that_they_are_launched_with() -> None:
    for op in stream.REDUCTIONS:
        threads, unroll = stream.geometry(op)
        assert KERNELS[f"stream_{op}"].options[:2] == (f"-DTHREADS={threads}", f"-DUNROLL={unroll}")


def test_triton_configurations_are_those_that_are_launched() -> None:
    pytest.importorskip("triton")
    from perfsuite_memory import coalescing_triton, stream_triton, transpose_triton

    assert (stream_triton.BLOCK, stream_triton.WARPS) == (
        kernels.STREAM_BLOCK,
        kernels.STREAM_WARPS,
    )
    assert coalescing_triton.BLOCK == kernels.FIELD_BLOCK
    assert (transpose_triton.TILE, transpose_triton.WARPS) == (
        kernels.TRANSPOSE_TILE,
        kernels.TRANSPOSE_WARPS,
    )
    for module in (stream_triton, coalescing_triton, transpose_triton):
        functions = {name for name in vars(module) if name.endswith("_kernel")}
        handed_over = {k.function for k in KERNELS.values() if k.module == module.__name__}
        assert functions == handed_over


def test_every_cuda_kernel_is_handed_over() -> None:
    functions = {kernel.function for kernel in KERNELS.values() if kernel.language == "cuda"}
    assert functions >= {
        *(f"stream_{op}" for op in stream.INPUTS),
        *(f"transpose_{impl}" for impl in transpose.KERNELS),
        "take_field",
    }
