"""Rows picked by index, rows added by index, and runs of rows added up."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import TRITON, Later, torch

kernels = Later("perfsuite_memory.gather_scatter_triton")
index_add = Later("perfsuite_memory.index_add_triton")

DIM = 128  # floats a row: 512 bytes, whole sectors wherever it lies
ROW_BYTES = 4 * DIM
INDEX_BYTES = 8
LINK_BYTES = 4
# Rows of a run, on average.
RUN = 32
# Columns that the reference sums at once in float64, and rows that it gathers at once.
COLUMNS_AT_ONCE, ROWS_AT_ONCE = 16, 2**16
ROWS = 2**20
MANY_ROWS = [2**16, ROWS, 2**22]
TAKES, ADDS = ["torch", "triton"], ["torch", "lists", "atomics"]


def picked(rows: int) -> int:
    """Return how many indices there are: no multiple of any tile."""
    return rows - 3


def runs(rows: int) -> int:
    """Return how many runs ``jagged_sum`` adds up."""
    return rows // RUN


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


@perfsuite.operator(
    smoke={"op": "gather", "order": "random", "rows": 2**14, "impl": TAKES},
    nightly=[
        {"op": "gather", "order": "random", "rows": ROWS, "impl": TAKES},
        {"op": "gather", "order": "sorted", "rows": ROWS, "impl": "triton"},
        {"op": "index_add", "order": "random", "rows": ROWS, "impl": ["torch", "lists"]},
        {"op": "jagged_sum", "order": "sorted", "rows": ROWS, "impl": TAKES},
    ],
    full=[
        {"op": ["gather", "jagged_sum"], "order": "sorted", "rows": MANY_ROWS, "impl": TAKES},
        {"op": "gather", "order": "random", "rows": MANY_ROWS, "impl": TAKES},
        {"op": "index_add", "order": ["random", "sorted"], "rows": MANY_ROWS, "impl": ADDS},
    ],
    work=_work,
    memory_bytes=lambda rows, **_: rows * (2 * ROW_BYTES + INDEX_BYTES + 2 * LINK_BYTES),
    # A gather moves bits; the others add whole numbers, whose sums float32 holds exactly.
    tolerance=0.0,
    tags=["sparse", "embedding"],
    version=2,
    source="PyTorch, torch.nn.functional.embedding, Tensor.index_add_ and torch.segment_reduce; "
    "meta-pytorch/tritonbench, embedding and jagged_sum",
)
def gather_scatter(rng: Any, *, op: str, order: str, rows: int) -> Any:
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
    count = picked(rows)
    if op == "gather" and order == "random":
        index = rng.rand(rows).argsort()[:count]
    else:
        index = rng.randint(0, runs(rows) if op == "jagged_sum" else rows, count, dtype="int64")
        index = index.sort().values if order == "sorted" else index
    if op == "gather":
        return rng.randn(rows, DIM), index, rng.empty(count, DIM)
    values = rng.randint(1, 9, count, DIM, dtype="float32")
    if op == "index_add":
        return values, index, rng.empty(rows, DIM)
    return values, _ends(index, runs(rows)), rng.empty(runs(rows), DIM)


@gather_scatter.reference
def _reference(values: Any, index: Any, out: Any, *, op: str) -> Any:
    """Take element by element by flat index, or add up runs, of sorted rows where need be."""
    if op == "jagged_sum":
        return _jagged_sums(values, index)
    if op == "index_add":
        order = index.argsort()
        return _jagged_sums(values, _ends(index[order], len(out)), order)
    within = torch.arange(DIM, device=values.device)
    parts = (part[:, None] * DIM + within for part in index.split(ROWS_AT_ONCE))
    return torch.cat([torch.take(values, part) for part in parts])


def _ends(sorted_index: Any, count: int) -> Any:
    """Return where each run begins, and where the last one ends."""
    return torch.searchsorted(sorted_index, torch.arange(count + 1, device=sorted_index.device))


def _jagged_sums(values: Any, ends: Any, order: Any = None) -> Any:
    """Subtract prefix sums in float64, some columns at a time.

    Each column is made contiguous: along rows torch scans with one thread a column, which takes
    seconds (H200, a million rows).
    """
    parts = []
    for part in values.split(COLUMNS_AT_ONCE, dim=1):
        columns = (part if order is None else part[order]).T.contiguous()
        sums = torch.nn.functional.pad(columns.double().cumsum(1), (1, 0))
        parts.append((sums[:, ends[1:]] - sums[:, ends[:-1]]).T)
    return torch.cat(parts, dim=1)


@gather_scatter.wrong
def _mistaken(values: Any, index: Any, out: Any, *, op: str) -> Any:
    """Store where an atomic addition was needed; take the last run's end for its last row."""
    if op == "gather":
        return values[index.roll(1)]
    if op == "index_add":
        return out.zero_().index_put_((index,), values)
    return _jagged_sums(values, torch.cat((index[:-1], index[-1:] - 1)))


@gather_scatter.impl
def _torch(ctx: Any, *, op: str) -> Any:
    if op == "jagged_sum":
        summed = partial(torch.segment_reduce, reduce="sum", axis=0, unsafe=True)
        return lambda values, ends, out: summed(values, offsets=ends)
    if op == "index_add":
        return lambda values, index, out: out.zero_().index_add_(0, index, values)
    return lambda table, index, out: torch.index_select(table, 0, index, out=out)


@gather_scatter.impl(needs=TRITON)
def _triton(ctx: Any, *, op: str) -> Any:
    return kernels.gather if op == "gather" else kernels.jagged


@gather_scatter.impl(needs=TRITON)
def _lists(ctx: Any, *, rows: int) -> Any:
    scratch = [torch.zeros(n, dtype=torch.int32, device=ctx.place) for n in (rows, picked(rows))]
    return index_add.lists(*scratch)


gather_scatter.impl(lambda ctx: index_add.atomics, name="atomics", needs=TRITON)
