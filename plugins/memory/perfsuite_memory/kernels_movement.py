"""The kernels of the cases in ``movement`` as they are launched, as plain data."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_memory import reduction


def kernels() -> list[Kernel]:
    """Return one kernel for each function and configuration that compiles to its own code."""
    return [
        _cuda(reduction.SOURCE, f"reduction_{impl}", (f"-DTHREADS={reduction.THREADS[impl]}",))
        for impl in reduction.KERNELS
    ]


def _cuda(file: Path, function: str, options: tuple[str, ...] = ()) -> Kernel:
    return Kernel(
        name=function, language="cuda", function=function, file=str(file), options=options
    )
