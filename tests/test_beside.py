"""Runs of several SKUs stand side by side: the same variants, claims and facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import report_data as data
from msgspec import structs

from perfsuite.model import Run
from perfsuite.report import view
from perfsuite.report.data import read
from perfsuite.report.html import Matrix, render_beside, write_beside


def other(slug: str = "nvidia-b200", factor: float = 0.5) -> Run:
    story = tuple(replace(told, time_us=told.time_us * factor) for told in data.STORY[1:])
    run = data.run_of(story)
    facts = structs.replace(run.facts, name="NVIDIA B200", environment={"driver": "590.1"})
    sku = structs.replace(run.sku, slug=slug)
    return structs.replace(run, id="20261122-1", sku=sku, facts=facts, claims=run.claims[:1])


def matrix(*runs: Run) -> Matrix:
    return Matrix(tuple(read(run, baselines={}) for run in runs))


def test_a_variant_is_compared_with_the_first_run() -> None:
    found = {line.variant: line for line in matrix(data.run_of(), other()).lines}
    gemm = found["compute.gemm[size=8192,impl=cublas]"].cells
    assert [cell.ratio for cell in gemm] == [f"1.00{view.TIMES}", f"2.00{view.TIMES}"]
    assert "TFLOP/s" in gemm[0].aside
    assert found["compute.gemm[size=4096,impl=naive]"].cells[1].mark is not None
    missing = found["memory.stream[op=copy,n=67108864]"].cells
    assert missing[0].text.startswith("128.31")
    assert (missing[1].text, missing[1].ratio) == (view.NOTHING, "")


def test_a_variant_that_the_first_run_lacks_has_no_ratio() -> None:
    line = next(
        one for one in matrix(other(), data.run_of()).lines if "copy,n=67108864" in one.variant
    )
    assert line.cells[1].ratio == ""
    assert line.keys.startswith("- - - - ")


def test_claims_and_facts_that_differ_stand_beside_each_other() -> None:
    found = matrix(data.run_of(), other())
    assert [[one is not None for one in held] for _, held in found.claims].count([True, True]) == 1
    facts = dict(found.differences)
    assert facts["driver"] == ["580.159.03", "590.1"]
    assert facts["torch"] == ["2.11.0", None]
    assert "sm_count" not in facts


def test_two_runs_of_one_product_are_told_apart() -> None:
    assert matrix(data.run_of(), other()).names == ["nvidia-h200", "nvidia-b200"]
    assert matrix(data.run_of(), other("nvidia-h200")).names == [
        "20261121-103000-3f2a",
        "20261122-1",
    ]
    assert matrix(data.run_of(), other(), other("nvidia-h200")).names == [
        "nvidia-h200, 20261121-103000-3f2a",
        "nvidia-b200",
        "nvidia-h200, 20261122-1",
    ]


def test_the_page_is_written_beside_the_reports(tmp_path: Path) -> None:
    path = write_beside((data.run_of(), other()), tmp_path)
    assert path == tmp_path / "20261121-103000-3f2a-beside-1" / "index.html"
    text = path.read_text("utf-8")
    assert "<h1>nvidia-h200 · nvidia-b200</h1>" in text
    assert text.count("Content-Security-Policy") == 1


def test_hostile_names_are_text() -> None:
    text = "<script>alert(1)</script>"
    run = other(text)
    run = structs.replace(
        run, facts=structs.replace(run.facts, environment={text: text}), commit=text, id=text
    )
    page = render_beside([read(one, baselines={}) for one in (data.run_of(), run)])
    assert text not in page
    assert page.count("<script>") == 1
