"""What a change is made of stands wherever the change is told."""

from __future__ import annotations

import json

import pytest
from explained_data import explained

from perfsuite.report.data import RunView
from perfsuite.report.files import render_page, verdict_json
from perfsuite.report.files import summary as markdown
from perfsuite.report.terminal import summary

VARIANT = "memory.stream[op=copy,n=268435456]"


@pytest.fixture(scope="module")
def run_view() -> RunView:
    return explained()


def test_the_kernel_is_named_on_the_terminal_and_in_markdown(run_view: RunView) -> None:
    lines = list(summary(run_view))
    (row,) = (index for index, line in enumerate(lines) if VARIANT in line)
    assert "copy_rows takes 499 us instead of 493 us" in lines[row + 1]
    (told,) = (line for line in markdown(run_view).splitlines() if "op=copy,n=268435456" in line)
    assert "registers 40" in told


def test_programs_read_it_too(run_view: RunView) -> None:
    found = {one["variant"]: one["why"] for one in json.loads(verdict_json(run_view))["variants"]}
    assert "its code changed: registers 40" in found[VARIANT]
    assert found["memory.stream[op=copy,n=67108864]"] == ""


def test_what_is_unclear_is_told_by_its_doubts(run_view: RunView) -> None:
    (unclear,) = (
        one
        for one in run_view.variants
        if one.variant.id.startswith("memory.h2d[mb=256,pinned=false")
    )
    assert "a change would be found" in unclear.cause
    assert "copy_rows" not in unclear.cause


def test_the_page_has_kernels_code_earlier_runs_and_the_packs_own_words(run_view: RunView) -> None:
    page = render_page(run_view)
    section = page.partition('<details id="v-memory-stream-op-copy-n-268435456"')[2]
    section = section.partition("Measure it again")[0]
    places = [section.index(f"<h3>{head}") for head in ("Why", "History", "Time per launch")]
    assert places == sorted(places)
    assert "-ld.global.v4.f32" in section
    assert "level shifted by +2.13" in section
    assert "What a pack adds." in page
