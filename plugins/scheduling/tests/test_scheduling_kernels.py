"""The pack's kernels with no GPU: compiled for Hopper and Blackwell, interpreted on the CPU."""

from pathlib import Path

import pytest
from kernel_codes import codes_of, wrong_in
from perfsuite_scheduling import work_queue

STEPS = {"plain": 0, "early": 2}
TARGETS = pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])


@TARGETS
def test_no_kernel_spills(target: str) -> None:
    codes = codes_of("scheduling", target)
    assert [name for name, made in codes.items() if made.spills] == []
    assert all(made.count("EXIT") for made in codes.values())


@TARGETS
def test_barrier_is_one_atomic_and_drops_the_first_level_cache(target: str) -> None:
    codes = codes_of("scheduling", target)
    assert codes["smoothing.steps"].count("ATOMG") == 1
    assert codes["smoothing.steps"].count("CCTL") >= 1
    assert codes["smoothing.step"].count("ATOMG") == 0


@TARGETS
def test_only_the_queue_takes_tickets(target: str) -> None:
    codes = codes_of("scheduling", target)
    taken = {
        kind: codes[f"work_queue.{kind}"].count("ATOMG") for kind in work_queue.FUNCTIONS.values()
    }
    assert taken == {"static_split": 0, "block_each": 0, "atomic_queue": 2, "sorted_queue": 2}


def test_rounds_stay_a_loop() -> None:
    # A load, a store and the loop: an unrolled one would have a multiplication a round.
    made = codes_of("scheduling")["streams.advance"]
    assert made.count("IMAD") < 8
    assert made.count("BRA") >= 2


@TARGETS
def test_only_the_early_step_is_started_before_its_turn(target: str) -> None:
    codes = codes_of("scheduling", target)
    # What griddepcontrol.wait and .launch_dependents become.
    waits = {step: codes[f"pdl.step_{step}"].count("ACQBULK", "PREEXIT") for step in STEPS}
    assert waits == STEPS


def test_triton_kernels_are_right_in_the_interpreter() -> None:
    assert wrong_in(Path(__file__).with_name("interpret.py"), 7, 1e-6) == {}
