"""Rows picked by index, rows added by index, and runs of rows added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite

Launch = Callable[..., Any]

DIM = 128  # floats a row: 512 bytes, whole sectors wherever it lies
ROW_BYTES = 4 * DIM
INDEX_BYTES = 8
LINK_BYTES = 4
# Rows of a run, on average.
RUN = 32
# Columns that the reference sums at once in float64, and rows that it gathers at once.
COLUMNS_AT_ONCE, ROWS_AT_ONCE = 16, 2**16
SMALL_ROWS = 2**14
LISTED: dict[str, dict[str, tuple[str, ...]]] = {
    "gather": {"random": ("torch", "triton"), "sorted": ("torch", "triton")},
    "index_add": dict.fromkeys(("random", "sorted"), ("torch", "lists", "atomics")),
    "jagged_sum": {"sorted": ("torch", "triton")},
}


def picked(rows: int) -> int:
    """Return how many indices there are: no multiple of any tile."""
    return rows - 3


def runs(rows: int) -> int:
    """Return how many runs ``jagged_sum`` adds up."""
    return rows // RUN


def _is_listed(*, op: str, order: str, rows: int, impl: str) -> bool:
    return impl in LISTED[op].get(order, ())


def _work(*, op: str, order: str, rows: int, impl: str) -> perfsuite.Work:
    # Of the indices drawn, each row is among them with probability 1 - (1 - 1/rows)^count. A random
    # order has each row once: rows that come again would be read again, unless the cache held the
    # whole table between, and no count of distinct ones would be a bound that a kernel could reach.
    count = picked(rows)
    if op == "gather":
        distinct = count if order == "random" else rows * (1 - (1 - 1 / rows) ** count)
        read = ROW_BYTES * distinct + INDEX_BYTES * count
        return perfsuite.Work(read_bytes=read, write_bytes=ROW_BYTES * count)
    sums, marks = (runs(rows), runs(rows) + 1) if op == "jagged_sum" else (rows, count)
    return perfsuite.Work(
        read_bytes=ROW_BYTES * count + INDEX_BYTES * marks,
        write_bytes=ROW_BYTES * sums,
        flops=DIM * count,
        rate_dtype="fp32",
    )


def _memory_bytes(*, op: str, order: str, rows: int, impl: str) -> int:
    scratch = 2 * LINK_BYTES * rows if impl == "lists" else 0
    return 2 * rows * ROW_BYTES + rows * INDEX_BYTES + scratch


@perfsuite.case(
    axes={
        "op": ["gather", "index_add", "jagged_sum"],
        "order": ["random", "sorted"],
        "rows": [2**20],
        "impl": ["torch", "triton", "lists", "atomics"],
    },
    smoke={"op": ["gather"], "order": ["random"], "rows": [SMALL_ROWS]},
    full={"rows": [2**16, 2**20, 2**22]},
    only=_is_listed,
    full_only=[
        {"op": ["index_add"], "order": ["sorted"]},
        {"op": ["index_add"], "impl": ["atomics"]},
        {"op": ["gather"], "order": ["sorted"], "impl": ["torch"]},
    ],
    needs=[
        perfsuite.cuda().when(impl=["triton", "lists", "atomics"]),
        perfsuite.package("triton").when(impl=["triton", "lists", "atomics"]),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["sparse", "embedding"],
    version=2,
    source="PyTorch, torch.nn.functional.embedding, Tensor.index_add_ and torch.segment_reduce; "
    "meta-pytorch/tritonbench, embedding and jagged_sum",
)
def gather_scatter(ctx: Any, *, op: str, order: str, rows: int, impl: str) -> perfsuite.Workload:
    """Move rows of 128 floats by indices drawn evenly, as drawn or sorted.

    gather out[i] = table[index[i]], an embedding (random: a shuffled table, each row once);
    index_add out[index[i]] += values[i], its gradient; jagged_sum adds up runs of 32 rows on
    average, whose ends are given.

    index_add by torch, and by atomics in Triton, is zeros and an atomic addition for each float, or
    for four neighbours at once: L2 takes in each row of the table to change it, and a row that is
    added to later once more. lists has an atomic operation a row: it links the rows that go to the
    same place, then adds up each list, and writes each row of the table once. By event timing on an
    H200 it takes 309 us for 2^20 random rows, 80 % of the memory's ceiling (sorted: 86 %), torch
    1120 and atomics 569: a program walks its lists until the longest has ended, each step a read
    that says where the next one is.
    """
    makers = {"gather": _gather_inputs, "index_add": _add_inputs, "jagged_sum": _jagged_inputs}
    references: dict[str, Launch] = {
        "gather": _gathered,
        "index_add": _added,
        "jagged_sum": _jagged_sums,
    }
    wrongs = {"gather": _without_last, "index_add": _last_one_wins, "jagged_sum": _ends_too_early}
    return perfsuite.Workload(
        fn=_launch(ctx, op, rows, impl),
        make_inputs=lambda rng: makers[op](rng, rows, order),
        reference=references[op],
        wrong=wrongs[op],
        # A gather moves bits; the others add whole numbers, whose sums float32 holds exactly.
        tolerance=0.0,
    )


def _launch(ctx: Any, op: str, rows: int, impl: str) -> Launch:
    import torch

    if impl in ("lists", "atomics"):
        from perfsuite_memory import index_add_triton

        def zeros(count: int) -> Any:
            return torch.zeros(count, dtype=torch.int32, device=ctx.place)

        if impl == "atomics":
            return index_add_triton.atomics
        return index_add_triton.lists(picked(rows), rows, zeros)
    if impl == "triton":
        from perfsuite_memory import gather_scatter_triton

        return {"gather": gather_scatter_triton.gather, "jagged_sum": gather_scatter_triton.jagged}[
            op
        ]
    launches: dict[str, Launch] = {
        "gather": lambda table, index, out: torch.index_select(table, 0, index, out=out),
        "index_add": lambda values, index, out: out.zero_().index_add_(0, index, values),
        "jagged_sum": lambda values, ends, out: torch.segment_reduce(
            values, "sum", offsets=ends, axis=0, unsafe=True
        ),
    }
    return launches[op]


def _indices(rng: Any, count: int, below: int, order: str) -> Any:
    index = rng.randint(0, below, count, dtype="int64")
    return index.sort().values if order == "sorted" else index


def _gather_inputs(rng: Any, rows: int, order: str) -> tuple[Any, ...]:
    if order == "random":
        index = rng.rand(rows).argsort()[: picked(rows)]
    else:
        index = _indices(rng, picked(rows), rows, order)
    return rng.randn(rows, DIM), index, rng.empty(picked(rows), DIM)


def _add_inputs(rng: Any, rows: int, order: str) -> tuple[Any, ...]:
    index = _indices(rng, picked(rows), rows, order)
    return _whole_numbers(rng, rows), index, rng.empty(rows, DIM)


def _jagged_inputs(rng: Any, rows: int, order: str) -> tuple[Any, ...]:
    index = _indices(rng, picked(rows), runs(rows), order)
    return _whole_numbers(rng, rows), _ends(index, runs(rows)), rng.empty(runs(rows), DIM)


def _whole_numbers(rng: Any, rows: int) -> Any:
    return rng.randint(1, 9, picked(rows), DIM, dtype="float32")


def _ends(sorted_index: Any, count: int) -> Any:
    """Return where each run begins, and where the last one ends."""
    import torch

    numbers = torch.arange(count + 1, device=sorted_index.device)
    return torch.searchsorted(sorted_index, numbers)


def _gathered(table: Any, index: Any, out: Any) -> Any:
    """Take element by element by flat index."""
    import torch

    within = torch.arange(DIM, device=table.device)
    parts = (part[:, None] * DIM + within for part in index.split(ROWS_AT_ONCE))
    return torch.cat([torch.take(table, part) for part in parts])


def _added(values: Any, index: Any, out: Any) -> Any:
    order = index.argsort()
    return _jagged_sums(values, _ends(index[order], len(out)), out, order)


def _jagged_sums(values: Any, ends: Any, out: Any, order: Any = None) -> Any:
    """Subtract prefix sums in float64, some columns at a time.

    Each column is made contiguous: along rows torch scans with one thread a column, which takes
    seconds (H200, a million rows).
    """
    import torch

    parts = []
    for part in values.split(COLUMNS_AT_ONCE, dim=1):
        columns = (part if order is None else part[order]).T.contiguous()
        sums = torch.nn.functional.pad(columns.double().cumsum(1), (1, 0))
        parts.append((sums[:, ends[1:]] - sums[:, ends[:-1]]).T)
    return torch.cat(parts, dim=1)


def _without_last(table: Any, index: Any, out: Any) -> None:
    """Round the grid down."""
    out[:-1] = table[index[:-1]]


def _last_one_wins(values: Any, index: Any, out: Any) -> None:
    """Store where an atomic addition was needed."""
    out.zero_()
    out[index] = values


def _ends_too_early(values: Any, ends: Any, out: Any) -> Any:
    """Take each run's end for its last row."""
    import torch

    lengths = (ends[1:] - ends[:-1]).clamp(min=1) - 1
    ids = torch.repeat_interleave(torch.arange(len(lengths), device=ends.device), lengths)
    within = torch.arange(len(ids), device=ends.device) - (lengths.cumsum(0) - lengths)[ids]
    return out.zero_().index_add_(0, ids, values[ends[:-1][ids] + within])
