"""What a SKU reaches by the accepted times of its ceiling cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from store_data import finished

from perfsuite import roofline
from perfsuite.baselines import accept
from perfsuite.ceilings import with_measured
from perfsuite.model import BaselineEntry, BaselineMetric, Work
from perfsuite.roofline import GENERIC, PEAKS
from perfsuite.yardstick import find_yardstick

H200 = PEAKS["nvidia-h200"]


def _accepted(variant: str, time_us: float) -> BaselineEntry:
    metrics = {"time_us": BaselineMetric(center=time_us, unit="us")}
    return BaselineEntry(variant=variant, case_version=1, run="r", metrics=metrics)


def test_ceiling_is_the_best_that_is_accepted_of_its_cases() -> None:
    times = {
        "memory.stream[op=copy,n=268435456,impl=torch]": 500.0,
        "memory.stream[op=add,n=268435456,impl=cuda]": 700.0,
        "memory.stream[op=copy,n=67108864,impl=cuda]": 1.0,
        "memory.l2_sweep[kib=24576,impl=cuda]": 100.0,
    }
    found = with_measured(H200, [_accepted(*each) for each in times.items()])
    assert found.links["hbm"].value == pytest.approx(3 * 2**30 / 700e-6)
    assert "op=add" in found.links["hbm"].source
    assert found.links["l2"].value == pytest.approx(42 * 24 * 2**20 / 100e-6)
    assert found.links["pcie"] is H200.links["pcie"]
    assert found.operations == H200.operations
    l2 = Work(read_bytes=2**30, link="l2")
    assert roofline.efficiency(l2, found, 200.0) == pytest.approx(0.507, abs=1e-3)
    assert roofline.efficiency(l2, H200, 200.0) is None


def test_of_a_product_that_is_not_listed_no_share_is_told() -> None:
    entry = _accepted("memory.stream[op=copy,n=268435456,impl=torch]", 500.0)
    assert with_measured(GENERIC, [entry]) is GENERIC


def test_ceiling_that_was_accepted_is_known_to_a_run_without_it(tmp_path: Path) -> None:
    run = finished({"stream": 700.0, "other": 100.0})
    name = "memory.stream[op=add,n=268435456,impl=cuda]"
    renamed = tuple(
        replace(each, id=name) if each.case.name == "stream" else each for each in run.variants
    )
    of_it = {old.id: new.id for old, new in zip(run.variants, renamed, strict=True)}
    results = tuple(replace(each, variant=of_it[each.variant]) for each in run.results)
    accept(replace(run, variants=renamed, results=results), tmp_path, reason="r", by="b")
    later = replace(run, id="later", variants=run.variants[1:], results=run.results[1:])
    found = find_yardstick([tmp_path], tmp_path / "none", run=later)
    assert found.reached is not None
    assert found.reached.links["hbm"].value == pytest.approx(3 * 2**30 / 700e-6, rel=1e-4)
    # What no result may exceed is the product's: a kernel may be better than the best so far.
    assert found.peaks is H200
