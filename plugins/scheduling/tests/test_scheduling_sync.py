"""Barriers, graphs and priorities: compiled for Hopper, and played on the CPU."""

from kernel_codes import codes_of
from perfsuite_scheduling import graph_conditional, stream_priority


def test_a_cluster_alone_needs_no_counter() -> None:
    codes = {
        name: made for name, made in codes_of("scheduling").items() if "grid_sync.step" in name
    }
    assert {name: made.count("ATOMG") for name, made in codes.items()} == {
        "grid_sync.step_128": 0,  # its end is the barrier
        "grid_sync.steps_8": 1,
        "grid_sync.steps_128": 1,
        "grid_sync.steps_cluster_8": 0,
        "grid_sync.steps_cluster_128": 1,
    }
    for blocks in (8, 128):
        found = codes[f"grid_sync.steps_cluster_{blocks}"]
        assert found.count("UCGABAR_ARV") == found.count("UCGABAR_WAIT") >= 1
        assert found.count("CCTL") >= found.count("UCGABAR_WAIT")  # what was cached is read again


def test_condition_is_set_by_a_call() -> None:
    codes = codes_of("scheduling")
    assert codes["graph_conditional.decide"].count("CALL") == 1
    assert codes["graph_conditional.euclid_step"].count("STG") == 3


def test_planted_pair_takes_the_longest() -> None:
    left, right = graph_conditional.LONGEST
    steps = 0
    while right:
        left, right, steps = right, left % right, steps + 1
    assert steps == graph_conditional.STEPS
    assert left + right == 1


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(each) for each in range(1, 101)]
    assert [stream_priority.rank(values, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]
