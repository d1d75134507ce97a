"""What variants say that they hold, against what torch takes for them."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from perfsuite_memory import atomics, scan_sort_topk

import perfsuite
from perfsuite.devices.protocol import open_device

BASELINE = Path(__file__).parents[3] / "baselines" / "nvidia-h200" / "memory.json"


def _held(operator: perfsuite.Operator, **axes: int | str) -> int:
    case = operator.declared()[0]
    assert isinstance(case, perfsuite.Case)
    assert case.memory_bytes is not None
    return case.memory_bytes(**axes)


def _most_taken(function: Callable[[], object]) -> int:
    """Return the bytes that torch held at most while a function ran on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    events = profiler.profiler.kineto_results.events()
    changes = (int(event.nbytes()) for event in events if event.name() == "[memory]")
    del result
    return max(itertools.accumulate(changes))


def test_prefix_sums_to_compare_with_fit_into_what_is_held() -> None:
    torch = pytest.importorskip("torch")
    case, n = scan_sort_topk.scan_sort_topk, 2**20 + 3
    workload = case.build(open_device("cpu").context(3), op="scan", n=n, impl="torch")
    x, out = (torch.ones(n, dtype=torch.int32) for _ in range(2))
    taken = _most_taken(lambda: workload.reference(x, out))
    assert 24 * n <= taken <= _held(case, op="scan", n=n, impl="cuda") - 8 * n


def test_sorting_fits_into_what_is_held() -> None:
    # What a sort takes on a GPU is a metric of its baseline; references sort too.
    case, n = scan_sort_topk.scan_sort_topk, scan_sort_topk.SORT_N
    entry = json.loads(BASELINE.read_text(encoding="utf-8"))["variants"]
    entry = entry[f"memory.scan_sort_topk[op=sort,n={n},impl=torch]"]
    taken = entry["metrics"]["peak_bytes"]["center"]
    assert 32 * n <= taken <= _held(case, op="sort", n=n, impl="torch") - 8 * n
    assert taken <= _held(case, op="topk", n=n, impl="triton") - 4 * n
    assert taken <= _held(atomics.atomics, n=n, keys="uniform", impl="global") - 4 * n
