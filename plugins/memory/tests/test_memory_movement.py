"""The cases of ``movement`` with no GPU: machine code, references, controls, formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_memory import gather_scatter, kernels_movement, movement, reduction, scan_sort_topk

import perfsuite

HERE = Path(__file__).parent
CASES = {each.name: each for each in movement.CASES if isinstance(each, perfsuite.Case)}
CLAIMS = [each for each in movement.CASES if isinstance(each, perfsuite.Claim)]
Opcodes = dict[str, Counter[str]]


def _lines(script: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    return lines_of(HERE / script, *arguments, **environment)


@pytest.fixture(scope="module")
def opcodes() -> Opcodes:
    """Return the SASS opcodes of each kernel for sm_90."""
    pytest.importorskip("cuda.core")
    return {row["name"]: Counter(row["opcodes"]) for row in _lines("compile_movement.py")}


def _starting(counts: Counter[str], start: str) -> int:
    return sum(number for code, number in counts.items() if code.startswith(start))


def test_no_kernel_spills(opcodes: Opcodes) -> None:
    assert set(opcodes) == {kernel.name for kernel in kernels_movement.kernels()}
    for name, counts in opcodes.items():
        assert counts["EXIT"], name
        assert not _starting(counts, "LDL") + _starting(counts, "STL"), name


def test_rungs_of_the_sum_do_what_their_names_say(opcodes: Opcodes) -> None:
    atomic, tree, shuffle = (opcodes[f"reduction_{impl}"] for impl in reduction.KERNELS)
    assert _starting(atomic, "RED") == 1
    assert _starting(tree, "BAR.SYNC") > 1
    assert _starting(tree, "RED") == _starting(shuffle, "RED") == 0
    assert _starting(shuffle, "SHFL") == 10
    assert _starting(shuffle, "BAR.SYNC") == 1


@dataclass
class PlayedContext:
    """A context whose CUDA C++ kernels are played by Python, to see how builders launch them."""

    device: str = "cpu"
    place: str = "cpu"
    arch: str = "sm_90a"
    seed: int = 3

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file."""
        assert all(option.startswith("-D") for option in options)
        assert f"{name}(" in path.read_text(encoding="utf-8")
        plays: dict[str, Callable[..., None]] = {
            "reduction_atomic": _play_atomic,
        }
        return plays.get(name, _play_sums)


def _play_atomic(grid: int, block: int, x: Any, out: Any, n: int) -> None:
    assert grid * block >= n == x.numel()
    out += x.sum()


def _play_sums(grid: int, block: int, x: Any, sums: Any, n: int) -> None:
    assert n == x.numel()
    assert grid == sums.numel()
    assert x.data_ptr() != sums.data_ptr()
    parts = x.new_zeros(-(-n // (grid * block)), grid, block)
    parts.view(-1)[:n] = x.reshape(-1)
    sums.copy_(parts.sum((0, 2)).view(sums.shape))


def _check(case: perfsuite.Case, ctx: Any = None, **axes: Any) -> float | None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    device = open_device("cpu")
    workload = case.build(ctx or device.context(3), **axes)
    assert isinstance(workload, perfsuite.Workload)
    return check(device, workload, seed=3).known_error


@pytest.mark.parametrize("n", [1, 255, 70001])
@pytest.mark.parametrize("impl", ["torch", *reduction.KERNELS])
def test_sum_is_launched_right_and_a_lost_block_is_refused(n: int, impl: str) -> None:
    assert _check(reduction.reduction, PlayedContext(), n=n, impl=impl) == 0


@pytest.mark.parametrize("rows", [64, 1000])
@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.parametrize("op", list(gather_scatter.LISTED))
def test_rows_are_moved_right_and_the_mistake_is_refused(op: str, order: str, rows: int) -> None:
    if order in gather_scatter.LISTED[op]:
        case = gather_scatter.gather_scatter
        assert _check(case, op=op, order=order, rows=rows, impl="torch") == 0


def test_a_gather_must_read_what_is_drawn_at_least_once() -> None:
    work = gather_scatter.gather_scatter.work
    assert work is not None
    once = work(op="gather", order="random", rows=2**20, impl="torch")
    assert once.read_bytes == (2**20 - 3) * 520
    one = work(op="gather", order="sorted", rows=2**20, impl="torch")
    assert one.read_bytes / (2**20 * 512) == pytest.approx(1 - 1 / 2.71828 + 8 / 512, rel=1e-4)
    assert work(op="index_add", order="sorted", rows=8, impl="torch").bytes == 5 * 520 + 8 * 512


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    rows = _lines("interpret_movement.py", TRITON_INTERPRET="1")
    assert len(rows) >= 6
    assert [row["name"] for row in rows if not row["is_right"]] == []


def test_triton_configurations_are_those_that_are_launched() -> None:
    pytest.importorskip("triton")
    from perfsuite_memory import gather_scatter_triton, topk_triton
    from perfsuite_memory import index_add_triton as adds
    from perfsuite_memory import scan_sort_topk_triton as scans

    assert {"BLOCK": scans.SCAN_BLOCK, "WINDOW": scans.WINDOW} == kernels_movement.SCAN
    assert scans.WINDOW >= 32 * scans.SCAN_WARPS
    for name in ("MAXIMUM_BLOCK", "RANK_BLOCK", "MOST", "FEW"):
        assert getattr(topk_triton, name) == getattr(kernels_movement, name)
    # All maxima of the largest array are ranked at once.
    assert topk_triton.RANK_BLOCK * topk_triton.MAXIMUM_BLOCK >= scan_sort_topk.TOP_N
    assert min(topk_triton.MOST, topk_triton.FEW) >= scan_sort_topk.K
    assert gather_scatter_triton.ROWS == kernels_movement.GATHER_ROWS
    assert gather_scatter_triton.DIM == adds.DIM == gather_scatter.DIM
    assert {"ROWS": adds.ADD_ROWS, "WARPS": adds.ADD_WARPS} == kernels_movement.ADD
    assert {"BLOCK": adds.LINK_BLOCK, "WARPS": adds.LINK_WARPS} == kernels_movement.LINK
    assert {"ROWS": adds.SUM_ROWS, "WARPS": adds.SUM_WARPS} == kernels_movement.LIST_SUM


def test_rows_are_moved_sixteen_bytes_an_access(opcodes: Opcodes) -> None:
    assert _starting(opcodes["gather_triton"], "LDG.E.128") == 4
    assert _starting(opcodes["gather_triton"], "STG.E.128") == 4
    assert _starting(opcodes["jagged_triton"], "LDG.E.128") >= 4


def test_sums_take_four_floats_an_atomic_or_one_atomic_a_row(opcodes: Opcodes) -> None:
    add, link, total = (opcodes[f"index_{name}_triton"] for name in ("add", "link", "sum"))
    atomics = {code for code in add if code.startswith(("RED", "ATOM"))}
    assert len(atomics) == 1
    assert "F32x4" in atomics.pop()
    assert _starting(link, "ATOMG.E.EXCH") == 4
    assert not _starting(total, "RED") + _starting(total, "ATOM")
    assert min(_starting(total, "LDG.E.EF.128"), _starting(total, "STG.E.128")) >= 4


@pytest.mark.parametrize("op", list(scan_sort_topk.IMPLEMENTATIONS))
@pytest.mark.parametrize("n", [64, 65537])
def test_library_orders_and_adds_and_the_mistake_is_refused(op: str, n: int) -> None:
    case = scan_sort_topk.scan_sort_topk
    assert _check(case, op=op, n=n + 1024, impl="torch") == 0


def test_scan_looks_back_by_atomics_and_reads_vectors(opcodes: Opcodes) -> None:
    counts = opcodes["scan_triton"]
    # A whole tile's and a part of the last one's, where n is a multiple of 16.
    assert _starting(counts, "LDG.E.128") == 32 + 4
    assert _starting(counts, "STG.E.128") == 32 + 4
    assert _starting(counts, "ATOMG") >= 2


def test_rounds_stay_a_loop(opcodes: Opcodes) -> None:
    # An unrolled loop would have a multiplication a round.
    assert _starting(opcodes["advance"], "IMAD") < 10
    assert _starting(opcodes["advance"], "BRA") >= 2


def test_tree_ends_in_one_sum() -> None:
    assert reduction.tree_sizes(2**28) == (2**20, 2**12, 16, 1)
    assert reduction.tree_sizes(257) == (2, 1)
    assert reduction.tree_sizes(1) == (1,)


def test_work_counts_what_must_move() -> None:
    assert reduction.reduction.work is not None
    assert reduction.reduction.work(n=100, impl="tree").bytes == 404


def bindings(case: perfsuite.Case, tier: str) -> list[dict[str, Any]]:
    """Return the axes of the variants that a tier lists."""
    import itertools

    from perfsuite.packs.load import is_full_only

    axes = {**case.axes, **{"smoke": case.smoke, "nightly": {}, "full": case.full}[tier]}
    every = [dict(zip(axes, v, strict=True)) for v in itertools.product(*axes.values())]
    listed = [bound for bound in every if case.only is None or case.only(**bound)]
    return [bound for bound in listed if tier == "full" or not is_full_only(case, bound)]
