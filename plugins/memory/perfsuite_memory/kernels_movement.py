"""The kernels of the cases in ``movement`` as they are launched, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_memory import gather_scatter, reduction

# Copied from the Triton modules, which cannot be imported where kernels are only listed; the
# tests hold them equal.
GATHER_ROWS = 16
_FLOATS = "*fp32"


def kernels() -> list[Kernel]:
    """Return one kernel for each function and configuration that compiles to its own code."""
    return [*_reductions(), *_gathers()]


def _reductions() -> list[Kernel]:
    return [
        _cuda(reduction.SOURCE, f"reduction_{impl}", (f"-DTHREADS={reduction.THREADS[impl]}",))
        for impl in reduction.KERNELS
    ]


def _gathers() -> list[Kernel]:
    module = "gather_scatter_triton"
    constants = {"DIM": gather_scatter.DIM, "ROWS": GATHER_ROWS}
    table = {"table_ptr": _FLOATS, "index_ptr": "*i64", "out_ptr": _FLOATS}
    runs = {"values_ptr": _FLOATS, "ends_ptr": "*i64", "out_ptr": _FLOATS}
    return [
        _triton(module, "gather_kernel", {**table, "count": "i32"}, constants, aligned=(*table,)),
        _triton(module, "jagged_kernel", runs, constants, aligned=(*runs,)),
    ]


def _cuda(file: Path, function: str, options: tuple[str, ...] = ()) -> Kernel:
    return Kernel(
        name=function, language="cuda", function=function, file=str(file), options=options
    )


def _triton(
    module: str,
    function: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    **fields: Any,
) -> Kernel:
    return Kernel(
        name=function.replace("_kernel", "_triton"),
        language="triton",
        function=function,
        module=f"perfsuite_memory.{module}",
        signature=signature,
        constants=constants,
        **fields,
    )
