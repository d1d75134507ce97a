"""What a variant's section says of metrics that are no clock."""

from __future__ import annotations

from dataclasses import replace

import report_data as data

from perfsuite.model import Metric, Result
from perfsuite.report.detail import exact
from perfsuite.report.subject import Subject, middles
from perfsuite.report.view import NOTHING, SPACE


def subject_with(metrics: dict[str, tuple[float, ...]], *declared: Metric) -> Subject:
    told = data.STORY[0]
    variant = data.variant_of(told)
    variant = replace(variant, case=replace(variant.case, metrics=declared))
    result: Result = data.result_of(told)
    evidence = tuple(
        replace(one, blocks=tuple(replace(block, metrics=metrics) for block in one.blocks))
        for one in result.evidence
    )
    result = replace(result, evidence=evidence)
    return Subject(
        variant=variant, anchor="a", result=result, middles=middles(result), screen=None,
        verdict=None, entry=None, before=None,
    )  # fmt: skip


def test_a_scenarios_metrics_stand_in_their_units() -> None:
    lines = exact(subject_with({"ttft_ms": (40.0, 42.0)}, Metric("ttft_ms", "ms")))
    (line,) = [each for each in lines if each.name == "ttft_ms"]
    assert (line.now, line.baseline) == (f"41{SPACE}ms", NOTHING)


def test_the_devices_own_time_is_a_time() -> None:
    lines = exact(subject_with({"device_us": (12.5, 12.5)}))
    (line,) = [each for each in lines if each.name == "device_us"]
    assert "12.5" in line.now
    assert line.now.endswith("µs")
