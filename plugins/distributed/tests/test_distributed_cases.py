"""The pack's cases on two and four gloo ranks, and the counts of a pretended world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from perfsuite_distributed import volume
from perfsuite_distributed.ranks import bus_bytes

import perfsuite

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("gloo_ranks.py")
LIMIT_S = 120
Axes = Mapping[str, object]


def checked(ranks: int, orders: Sequence[tuple[str, Axes]], folder: Path) -> list[tuple[str, str]]:
    """Check cases on this many ranks; return what each printed, with the case's name."""
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
    return [(case, found) for case, _, found in lines]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_collective_agrees_with_what_the_ranks_hold(ranks: int, tmp_path: Path) -> None:
    plans = [("all_reduce", "library"), ("all_reduce", "ring"), ("all_gather", "library")]
    orders = [
        ("collective", {"op": op, "ranks": ranks, "kib": 8, "impl": impl})
        for op, impl in (*plans, ("reduce_scatter", "library"))
    ]
    assert [case for case, _ in checked(ranks, orders, tmp_path)] == ["collective"] * 4


def test_the_ring_works_where_ranks_are_no_power_of_two(tmp_path: Path) -> None:
    order = ("collective", {"op": "all_reduce", "ranks": 3, "kib": 3, "impl": "ring"})
    assert checked(3, [order], tmp_path)


def test_neighbours_buckets_and_overlap_agree_with_the_reference(tmp_path: Path) -> None:
    orders: list[tuple[str, Axes]] = [
        ("peer_copy", {"ranks": 2, "kib": 4, "impl": "sendrecv"}),
        ("overlap", {"ranks": 2, "n": 64, "mib": 1, "impl": "serial"}),
        ("overlap", {"ranks": 2, "n": 64, "mib": 1, "impl": "overlap"}),
        ("overlap_share", {"ranks": 2, "n": 64, "mib": 1}),
    ]
    said = dict(checked(2, orders, tmp_path))
    assert list(json.loads(said["overlap_share"])) == ["hidden_percent"]


def test_a_bucket_is_one_call(tmp_path: Path) -> None:
    calls = {"each": 5, "bucket": 1, "one": 1}
    orders = [("bucketing", {"ranks": 2, "tensors": 5, "kib": 1, "impl": impl}) for impl in calls]
    found = [json.loads(text) for _, text in checked(2, orders, tmp_path)]
    assert dict(zip(calls, found, strict=True)) == {
        impl: {"all_reduces": count} for impl, count in calls.items()
    }


def test_bus_bytes_are_those_of_nccl_tests() -> None:
    assert bus_bytes("all_reduce", 100, 4) == 150
    assert bus_bytes("all_gather", 100, 4) == 75
    assert bus_bytes("reduce_scatter", 100, 2) == 50


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp_keep", "tensor"])
@pytest.mark.filterwarnings("ignore")
def test_a_step_communicates_what_its_formula_says(strategy: str) -> None:
    found = volume.volume.build(None, strategy=strategy, world=64)
    assert isinstance(found, perfsuite.Inspection)
    assert found.reference is not None
    assert found.wrong is not None
    read, wrong = found.read(), found.wrong()
    expected = found.reference()
    assert {name: read[name] for name in expected} == expected
    assert {name: wrong[name] for name in expected} != expected
