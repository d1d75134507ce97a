"""The kernels of the cases in ``movement`` as they are launched, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsuite import Kernel
from perfsuite_memory import advance, copy_overlap, gather_scatter, reduction, scan_sort_topk

# Copied from the Triton modules, which cannot be imported where kernels are only listed; the
# tests hold them equal.
GATHER_ROWS = 16
ADD = {"ROWS": 16, "WARPS": 4}
LINK = {"BLOCK": 512, "WARPS": 4}
LIST_SUM = {"ROWS": 8, "WARPS": 2}
SCAN = {"BLOCK": 4096, "WINDOW": 32}
MAXIMUM_BLOCK, RANK_BLOCK, MOST, FEW = 32768, 8192, 128, 128
_FLOATS = "*fp32"


def kernels() -> list[Kernel]:
    """Return one kernel for each function and configuration that compiles to its own code."""
    return [*_reductions(), *_gathers(), *_index_adds(), *_scans(), _advance()]


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


def _index_adds() -> list[Kernel]:
    values, index, out = {"values_ptr": _FLOATS}, {"index_ptr": "*i64"}, {"out_ptr": _FLOATS}
    links = {"head_ptr": "*i32", "next_ptr": "*i32"}
    dim = {"DIM": gather_scatter.DIM}
    add, link, total = ({**values, **index, **out}, {**index, **links}, {**values, **links, **out})
    found = (
        # The number of sums is a multiple of 16, that of indices is not.
        ("index_add_kernel", add, {"count": "i32"}, (*add,), {**dim, **ADD}),
        ("index_link_kernel", link, {"count": "i32"}, (*link,), LINK),
        ("index_sum_kernel", total, {"sums": "i32"}, (*total, "sums"), {**dim, **LIST_SUM}),
    )
    return [
        _triton(
            "index_add_triton",
            name,
            {**pointers, **size},
            {key: value for key, value in constants.items() if key != "WARPS"},
            aligned=aligned,
            num_warps=constants["WARPS"],
        )
        for name, pointers, size, aligned, constants in found
    ]


def _scans() -> list[Kernel]:
    k = scan_sort_topk.K
    pair = {"x_ptr": "*i32", "out_ptr": "*i32", "state_ptr": "*i64"}
    scan = {**pair, "n": "i32", "tiles": "i32"}
    maximum = {"x_ptr": _FLOATS, "maxima_ptr": "*i32", "count_ptr": "*i32", "n": "i32"}
    chosen = {"list_ptr": "*i32", "count_ptr": "*i32", "floor_ptr": "*i32"}
    search = {"x_ptr": _FLOATS, "maxima_ptr": "*i32", **chosen, "n": "i32", "blocks": "i32"}
    parent = {"K": k, "PARENT": MAXIMUM_BLOCK, "RANK": RANK_BLOCK, "MOST": MOST}
    last = {"K": k, "FEW": FEW, "ALL": MOST * k}
    found = (
        ("scan_kernel", scan, SCAN, {"num_warps": 1}),
        ("maximum_kernel", maximum, {"BLOCK": MAXIMUM_BLOCK}, {"num_warps": 8}),
        ("candidates_kernel", search, parent, {"num_warps": 8}),
        ("top_kernel", {**chosen, "out_ptr": _FLOATS}, last, {"num_warps": 8}),
    )
    return [
        _triton(
            "scan_sort_topk_triton" if types is scan else "topk_triton",
            name,
            types,
            constants,
            aligned=(*types,),
            **warps,
        )
        for name, types, constants, warps in found
    ]


def _advance() -> Kernel:
    return _cuda(advance.SOURCE, "advance", advance.options(copy_overlap.ROUNDS))


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
