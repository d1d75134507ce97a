"""The pack's cases on two to four gloo ranks, and the counts of a pretended world."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from perfsuite_distributed.ranks import over_links

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("gloo_ranks.py")
LIMIT_S = 120
PARTS = {"ranks": 2, "n": 64, "mib": 1}
Orders = list[tuple[str, dict[str, Any]]]


def checked(ranks: int, orders: Orders, folder: Path) -> list[Any]:
    """Check cases on this many ranks; return the metrics of each."""
    arguments = [str(folder / "rendezvous"), json.dumps(orders)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(ranks), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]
    try:
        said = [each.communicate(timeout=LIMIT_S)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.returncode for each in started] == [0] * ranks, said
    lines = [line.partition(" ") for line in said[0].splitlines() if line.endswith("}")]
    assert [case for case, _, _ in lines] == [case for case, _ in orders]
    return [json.loads(found) for _, _, found in lines]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_collective_agrees_with_what_the_ranks_hold(ranks: int, tmp_path: Path) -> None:
    plans = [("all_reduce", "library"), ("all_reduce", "ring"), ("all_gather", "library")]
    orders: Orders = [
        ("collective", {"op": op, "ranks": ranks, "kib": 3 * ranks, "impl": impl})
        for op, impl in (*plans, ("reduce_scatter", "library"))
    ]
    checked(ranks, orders, tmp_path)


def test_neighbours_and_overlap_agree_and_a_bucket_is_one_call(tmp_path: Path) -> None:
    calls = {"each": 5, "bucket": 1, "one": 1}
    orders: Orders = [("bucketing", {"ranks": 2, "tensors": 5, "kib": 1, "impl": i}) for i in calls]
    orders += [("overlap_share", PARTS), ("peer_copy", {"ranks": 2, "kib": 4, "impl": "sendrecv"})]
    orders += [("overlap", {**PARTS, "impl": impl}) for impl in ("serial", "overlap")]
    found = checked(2, orders, tmp_path)
    assert found[:3] == [{"all_reduces": count} for count in calls.values()]
    assert list(found[3]) == ["hidden_percent"]


def test_bus_bytes_are_those_of_nccl_tests() -> None:
    assert over_links("all_reduce", 100, 4).read_bytes == 150
    assert over_links("all_gather", 100, 4).read_bytes == 75
    assert over_links("reduce_scatter", 100, 2).read_bytes == 50
