"""The pack's kernels with no GPU: compiled for Hopper and Blackwell, interpreted on the CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_scheduling import perf_kernels, work_queue

HERE = Path(__file__).parent
Opcodes = dict[tuple[str, str], Counter[str]]


def _lines(script: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    return lines_of(HERE / script, *arguments, **environment)


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """Return what each kernel compiles to, for two targets."""
    pytest.importorskip("cuda.core")
    return _lines("compile_kernels.py")


@pytest.fixture(scope="module")
def opcodes(compiled: list[dict[str, Any]]) -> Opcodes:
    """Return the SASS opcodes of each kernel and target, without their modifiers."""
    return {
        (row["name"], row["target"]): Counter(code.partition(".")[0] for code in row["opcodes"])
        for row in compiled
    }


def test_every_kernel_compiles_for_both_targets_and_none_spills(opcodes: Opcodes) -> None:
    assert len(opcodes) == 2 * len(perf_kernels())
    for name, counts in opcodes.items():
        assert counts["EXIT"], name
        assert not counts["LDL"] + counts["STL"], name


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_barrier_is_one_atomic_and_drops_the_first_level_cache(
    opcodes: Opcodes, target: str
) -> None:
    assert opcodes["smoothing.steps", target]["ATOMG"] == 1
    assert opcodes["smoothing.steps", target]["CCTL"] >= 1
    assert opcodes["smoothing.step", target]["ATOMG"] == 0


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_only_the_queue_takes_tickets(opcodes: Opcodes, target: str) -> None:
    taken = {
        kind: opcodes[f"work_queue.{kind}", target]["ATOMG"]
        for kind in work_queue.FUNCTIONS.values()
    }
    assert taken == {"static_split": 0, "block_each": 0, "atomic_queue": 2, "sorted_queue": 2}


def test_rounds_stay_a_loop(opcodes: Opcodes) -> None:
    # A load, a store and the loop: an unrolled one would have a multiplication a round.
    assert opcodes["streams.advance", "sm_90a"]["IMAD"] < 8
    assert opcodes["streams.advance", "sm_90a"]["BRA"] >= 2


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_only_the_early_step_is_started_before_its_turn(
    compiled: list[dict[str, Any]], target: str
) -> None:
    waits = {row["name"]: row["waits"] for row in compiled if row["target"] == target}
    assert waits["pdl.step_plain"] == [0, 0]
    assert waits["pdl.step_early"] == [1, 1]


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    rows = _lines("interpret.py", TRITON_INTERPRET="1")
    assert len(rows) == 7
    assert {row["name"]: row["error"] for row in rows if not row["error"] < 1e-6} == {}
