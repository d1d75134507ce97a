"""Planted changes through the whole product: the report alone says what each is made of."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from msgspec.structs import replace
from test_runner import QUICK, request

from perfsuite.report.data import read
from perfsuite.report.files import render_page
from perfsuite.report.view import PLAIN
from perfsuite.run.run import Outcome, entries_in, execute
from perfsuite.store.runs import load_run

PLANTED = Path(__file__).parent / "packs" / "planted.py"
STEADY = replace(QUICK, processes=3, screen_rounds=3)
# A run, what each kind of its variants is explained by, and its page.
Told = tuple[Outcome, Mapping[str, str], str]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("fake")

    def measured(kinds: str, planted: str = "") -> Outcome:
        text = PLANTED.read_text(encoding="utf-8").replace("list(KINDS)", kinds)
        found: dict[str, Any] = {"PERFSUITE_TEST_PLANTED": planted}
        with patch.object(tempfile, "tempdir", str(folder)), patch.dict(os.environ, found):
            return execute(request(folder, text, settings=STEADY), Mock())

    before, again = measured("list(KINDS)"), measured('["extra"]')
    # What stayed the same is not traced again, and not forgotten.
    assert [len(outcome.run.traces) for outcome in (before, again)] == [8, 0]
    outcome = measured("list(KINDS)", planted="1")
    run_view = read(outcome.run, baselines=entries_in(outcome.run), previous=outcome.basis.previous)
    why = {str(one.variant.axes["kind"]): one.explanation.text for one in run_view.variants}
    plain = {kind: text.translate(PLAIN) for kind, text in why.items() if text}
    return outcome, plain, render_page(run_view)


@pytest.mark.parametrize(
    ("kind", "starts", "has"),
    [
        (
            "slower",
            "scale_rows takes 125 us instead of 100 us (100 % of the change), its code changed: ",
            "registers 64 -> 128",
        ),
        ("extra", "one more kernel, zero_fill, takes 15.0 us of each launch", "(100 % of the"),
        (
            "switched",
            "library switch, another kernel for the matrix product: nvjet_hsh_128x256_64x4",
            "instead of cutlass_80_tensorop_s16816gemm_f16_128x128_64x3<float, 4>, 130 us instead",
        ),
        ("machine", "scale_rows takes 110 us", "by the same code to the letter"),
        ("gaps", "+20.0 us (100 % of the change) are outside kernels: gaps", "and launching"),
        ("hostile", "", "…"),
    ],
)
def test_a_change_is_told_by_what_it_is_made_of(
    fake: Told, kind: str, starts: str, has: str
) -> None:
    assert fake[1][kind].startswith(starts)
    assert has in fake[1][kind]


def test_a_throttled_gpu_is_told_by_its_clock_and_not_by_a_kernel(fake: Told) -> None:
    found = fake[1]["throttled"]
    start = "the SM clock was 8.0 % lower, power cap active in 18 of 18 blocks: time +8."
    assert found.startswith(start)
    assert found.rpartition(", SM cycles ")[2].lstrip("+-") in {"0.0 %", "0.1 %"}
    assert "scale_rows" not in found


def test_the_page_has_the_code_and_what_could_not_be_traced(fake: Told) -> None:
    outcome, _, page = fake
    assert "-mov.u32 %r1;" in page
    assert "+st.local" in page
    traces = {trace.variant: trace for trace in outcome.run.traces}
    # What the clock leaves unclear is not traced.
    assert len(traces) == len(outcome.run.variants) - 1
    (lost,) = [trace for trace in traces.values() if not trace.kernels]
    assert lost.variant == "acme.planted[kind=lost]"
    assert lost.reason == "its tracing ended: killed by SIGKILL during trace"
    assert lost.reason in page
    assert "<script>alert(1)" not in page
    assert f'title="{"&lt;script&gt;alert(1)&lt;/script&gt;" * 4}"' in page


def test_traces_are_stored_with_the_run_and_its_texts_beside_it(fake: Told) -> None:
    run, file = fake[0].run, fake[0].run_file
    assert load_run(file).traces == run.traces
    assert run.phases_s["trace"] > 0
    code = next(code for t in run.traces if "slower" in t.variant for code in t.codes)
    kept = file.parents[1] / "artefacts" / f"{code.ptx}.ptx.gz"
    assert "st.local" in gzip.decompress(kept.read_bytes()).decode()
