"""Coverage tells by pack what ran, and what would have to be different for the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_data as data
from msgspec import structs

from perfsuite.model import Need, Status
from perfsuite.packs.select import missing_need
from perfsuite.report.data import OTHER, coverage, kind_of, read


def test_each_pack_counts_what_ran_and_groups_what_did_not() -> None:
    compute, memory = coverage(read(data.run_of(), baselines={}).subjects)
    assert (compute.pack, compute.ran, compute.chosen) == ("compute", 14, 17)
    assert [(one.kind, len(one.variants)) for one in compute.gaps] == [
        ("another device", 2),
        ("another device", 1),
    ]
    assert (memory.ran, memory.chosen, memory.gaps) == (14, 14, ())
    assert sum(count for _, count in compute.tallies) == compute.chosen


@pytest.mark.parametrize(
    ("need", "kind"),
    [
        (Need("arch", "sm_100a"), "another device"),
        (Need("device", "cpu"), "another device"),
        (Need("gpus", "8"), "another device"),
        (Need("feature", "fp4"), "another device"),
        (Need("package", "no_such_package"), "other software"),
    ],
)
def test_the_kind_is_read_from_the_plan_s_own_words(need: Need, kind: str) -> None:
    variant = data.variant_of(data.STORY[0])
    variant = structs.replace(variant, case=structs.replace(variant.case, needs=(need,)))
    reason = missing_need(variant, data.FACTS)
    assert reason
    assert kind_of(reason) == kind


def test_too_little_memory_is_another_device_and_an_interrupted_run_is_not() -> None:
    variant = structs.replace(data.variant_of(data.STORY[0]), memory_bytes=2 * 10**9)
    assert kind_of(missing_need(variant, structs.replace(data.FACTS, memory_bytes=10**9))) == (
        "another device"
    )
    assert kind_of("the run ended before it") == OTHER


def test_a_reason_that_is_empty_is_said_to_be() -> None:
    told = replace(data.STORY[0], word=Status.SKIPPED)
    (pack,) = coverage(read(data.run_of((told,)), baselines={}).subjects)
    assert [one.reason for one in pack.gaps] == ["no reason given"]
