"""A run whose variants belong to several SKUs: gangs of GPUs and compilation targets."""

from __future__ import annotations

import re
from pathlib import Path

import store_data as data
from msgspec.structs import replace

from perfsuite.model import Evidence, Regime, Result, Run, Status, Variant
from perfsuite.run.accept import accept
from perfsuite.run.expected import find_expected

FACTS = replace(data.FACTS, gpus=2, environment={**data.FACTS.environment, "triton": "3.7.1"})


def gang(ranks: int) -> Variant:
    plain = data.variant("all_reduce", ranks)
    return replace(plain, case=replace(plain.case, ranks="n", needs=()))


def compiled() -> Variant:
    plain = data.variant("kernel", 1)
    axes = (*plain.case.axes, "target")
    case = replace(plain.case, axes=axes, target="target", regime=Regime.EXACT)
    return replace(plain, case=case, axes={"n": 1, "target": "sm_90a"})


def a_run() -> Run:
    copy, pair, kernel = data.variant("copy", 1024), gang(2), compiled()
    counted = Evidence(slot=0, seed=0, unit=data.UNIT, exact={"registers": 40.0})
    results = (
        data.result(copy.id, 100.0),
        data.result(pair.id, 50.0),
        Result(variant=kernel.id, status=Status.OK, evidence=(counted,)),
    )
    run = data.planned(copy, pair, kernel)
    return replace(run, facts=FACTS, finished="2026-11-21T10:40:00+00:00").having(results=results)


def test_each_variant_is_accepted_for_and_compared_with_its_own_sku(tmp_path: Path) -> None:
    copy, kernel = data.variant("copy", 1024).id, compiled().id
    # What has no baseline of its SKU is told.
    accept(a_run(), tmp_path, reason="first", by="t", select=["memory.copy"])
    basis = find_expected([tmp_path], tmp_path / "none", run=a_run())
    assert [name for name, each in basis.expected.items() if each.entry] == [copy]
    assert {"nvidia-h200-x2", "sm_90a"} <= set(re.findall(r"[\w-]+", " ".join(basis.notes)))
    accept(a_run(), tmp_path, reason="second", by="t")
    assert {path.name for path in tmp_path.iterdir()} == {"nvidia-h200", "nvidia-h200-x2", "sm_90a"}
    basis = find_expected([tmp_path], tmp_path / "none", run=a_run())
    entries = [each.entry for each in basis.expected.values()]
    assert [bool(entry and entry.state) for entry in entries] == [True, True, False]
    assert {each.source for each in basis.expected.values()} == {
        "baseline nvidia-h200",
        "baseline nvidia-h200-x2",
        "accepted machine code for sm_90a",
    }
    assert not basis.notes
    # Another compiler is another environment, and no other product.
    other = replace(a_run(), facts=replace(FACTS, environment={"triton": "3.6.0"}))
    expected = find_expected([tmp_path], tmp_path / "none", run=other).expected
    assert not any(each.why_not for each in expected.values())
    assert expected[kernel].environment == {**FACTS.environment}
