"""What a change is made of, from made-up kernels of known truth, and wherever it is told."""

from __future__ import annotations

import json
import math
import re

import pytest
from msgspec.structs import replace
from report_data import baselines_of, explained, run_of
from store_data import moved
from test_report import GOLD, is_as_it_was

from perfsuite.explain.why import Kind, explain, headline, middle
from perfsuite.model import Change, Code, Health, Trace, TracedKernel
from perfsuite.report.data import RunView, SideView, read
from perfsuite.report.files import render_page, verdict_json
from perfsuite.report.view import PLAIN

SCALE = TracedKernel(name="scale_rows", count=1, duration_us=100.0, grid=(132, 1, 1), registers=64)
ADD = TracedKernel(name="add_rows", count=2, duration_us=10.0)
PARTS = replace(SCALE, duration_us=106.0), replace(ADD, duration_us=11.0)
CAPPED = Health(reasons=("sw_power_cap",))
FREE = Health()


def change(
    before_us: float, now_us: float, *, clock: float = 0.0, theta: float = 0.0, beta: float = 0.0
) -> Change:
    by = {"time_change": math.log(now_us / before_us), "clock_change": clock, "beta": beta}
    levels = {"baseline": before_us, "current": now_us}
    return moved(theta or now_us / before_us - 1, **levels, **by)


def side(*kernels: TracedKernel, **rest: object) -> SideView:
    return SideView(kernels=kernels, **rest)  # type: ignore[arg-type]


FACTS = ("registers", "spill_bytes")
WAYS = {"a": "", "b": "-\tst.f;\n+\tst.f;\n-\tld.f;\n+\t@%p1 ld.cs.f;\n+\tld.param.u64;\n"}
CODES = [
    Code(name="scale_rows", ptx=ptx, facts=dict(zip(FACTS, facts, strict=False)), diff=WAYS[ptx])
    for ptx, facts in (("a", (64, 0)), ("b", (128, 16)), ("a", (80, 0)))
]
SLOWER = replace(SCALE, duration_us=130.0)
CUTLASS = replace(SCALE, name="void cutlass_80_tensorop_128x128<float, 4>(float const*)")
NVJET = replace(SLOWER, name="nvjet_hsh_128x256_64x4")
BEFORE = {"driver": "575", "torch": "2.11", "new": "x"}
NOW = {"driver": "580", "torch": "2.11"}
THIRD = change(100.0, 130.0)
HOT = change(100.0, 108.0, clock=math.log(1.0011 / 1.08), theta=0.001)
SAME_CYCLES = change(100.0, 108.0, clock=math.log(1 / 1.08), theta=0.04, beta=0.5)
BOTH = side(SCALE, ADD)
# What moved, and its kernels before and now.
MADE = {
    "runs more often": (change(120.0, 130.0), BOTH, side(SCALE, replace(ADD, count=3))),
    "is gone": (change(120.0, 100.0), BOTH, side(SCALE)),
    "one more": (change(100.0, 115.0), side(SCALE), side(SCALE, replace(ADD, name="f", count=1))),
    "another of a library": (change(120.0, 150.0), side(CUTLASS, ADD), side(NVJET, ADD)),
    "other code": (THIRD, side(SCALE, codes=(CODES[0],)),
                   side(replace(SLOWER, registers=128), codes=(CODES[1],))),
    "otherwise assembled": (THIRD, side(SCALE, codes=(CODES[0],)),
                            side(replace(SLOWER, registers=80), codes=(CODES[2],))),
    "the same code": (THIRD, side(SCALE, codes=(CODES[0],)), side(SLOWER, codes=(CODES[0],))),
    "finer than a trace": (change(100.0, 100.4), side(SCALE, artefact="a"),
                           side(replace(SCALE, duration_us=100.3), artefact="a")),
    "a lower clock": (HOT, side(SCALE, health=(FREE,) * 18),
                      side(SCALE, health=(CAPPED,) * 14 + (FREE,) * 4)),
    "capped": (THIRD, side(SCALE, health=(FREE,)), side(SLOWER, health=(CAPPED, FREE))),
    # They say more than a kind of work.
    "the same cycles": (SAME_CYCLES, side(SCALE), side(SCALE)),
    "another environment": (
        THIRD, side(SCALE, environment=BEFORE), side(SLOWER, environment=NOW)
    ),
    "outside of kernels": (change(110.0, 130.0), side(SCALE), side(SCALE)),
    "two parts": (change(125.0, 135.0), BOTH, side(*PARTS)),
    "the other way": (change(900.0, 880.0), BOTH, side(
        replace(SCALE, duration_us=158.0), replace(ADD, duration_us=7.0))),
    "more than all, others faster": (change(120.0, 130.0), BOTH, side(
        replace(SCALE, duration_us=112.5), replace(ADD, duration_us=9.0))),
    "more than all, gaps, others faster": (change(120.0, 130.0), BOTH, side(
        replace(SCALE, duration_us=115.0), replace(ADD, duration_us=4.5))),
    "more than all, overlap": (change(120.0, 130.0), BOTH,
                               side(SLOWER, replace(ADD, duration_us=9.97))),
    "no verdict": (None, SideView(), side(SCALE)),
    "nothing traced": (THIRD, SideView(), SideView()),
}  # fmt: skip


def test_a_change_is_told_by_what_it_is_made_of() -> None:
    told = [f"{name}: {headline(explain(*each)).translate(PLAIN)}" for name, each in MADE.items()]
    is_as_it_was("\n".join(told) + "\n", GOLD / "why.txt")


def test_kernels_are_matched_by_shape_and_by_role() -> None:
    small = replace(SCALE, grid=(8, 1, 1), duration_us=9.0)
    now = side(replace(small, duration_us=19.0), SCALE)
    found = explain(change(109.0, 119.0), side(SCALE, small), now)
    shapes = {each.now.grid[0]: each.kind for each in found.kernels if each.now}
    assert shapes == {132: Kind.SAME, 8: Kind.CHANGED}
    gone = TracedKernel(name="ampere_sgemm_128x64", count=1, duration_us=50.0)
    new = [replace(gone, name=name) for name in ("nvjet_hsh_64x8", "flash_fwd_kernel")]
    found = explain(change(100.0, 150.0), side(gone, SCALE), side(*new, SCALE))
    kinds = {each.now.name: each.kind for each in found.kernels if each.now}
    assert (kinds[new[0].name], kinds[new[1].name]) == (Kind.REPLACED, Kind.ADDED)


def test_the_clock_is_a_cause_only_where_the_code_is_no_slower() -> None:
    assert not explain(replace(SAME_CYCLES, theta=0.08, beta=0.0), BOTH, BOTH).is_clock
    assert explain(THIRD, side(SCALE), side(SCALE, health=(CAPPED,))).clock is None


def test_long_names_keep_both_ends_and_where_they_differ() -> None:
    one, two = (f"gemm{'_bf16' * 9}_tile{n}x128{'_segment' * 6}_kernel" for n in (64, 128))
    assert ("tile64x128" in middle(one, two), "tile128x128" in middle(two, one)) == (True, True)
    assert middle(one, "", 120) == one
    # Of 61 characters no dot stands for one, wherever it differs from the other.
    name = "".join(map(chr, range(192, 253)))
    found = [middle(name, name[:at] + "!") for at in range(61)]
    assert max(map(len, found)) <= 60
    ends = re.findall("(.)\N{HORIZONTAL ELLIPSIS}(.)", " ".join(found))
    assert min(ord(after) - ord(before) for before, after in ends) > 2
    assert middle("flash::fwd(int)", "pytorch_flash::fwd(int)") == "flash::fwd(int)"


VARIANT = "memory.stream[op=copy,n=268435456]"


@pytest.fixture(scope="module")
def run_view() -> RunView:
    return explained()


def test_programs_read_it_too(run_view: RunView) -> None:
    found = {one["variant"]: one["why"] for one in json.loads(verdict_json(run_view))["variants"]}
    assert "its code changed: registers 40" in found[VARIANT]
    assert found["memory.stream[op=copy,n=67108864]"] == ""
    said, time = next((v, v.changes[0]) for v in run_view.run.verdicts if v.variant == VARIANT)
    stayed = replace(time, theta=0.0, low=-0.01, high=0.01, current=time.baseline)
    said = replace(said, changes=(stayed, replace(time, metric="device_us")))
    entries = {one.id: one.entry for one in run_view.variants if one.entry}
    page = render_page(read(run_view.run.having(verdicts=[said]), baselines=entries))
    assert re.search(f"</b><small>device_us .*{re.escape(found[VARIANT][:40])}", page, re.DOTALL)


def test_the_page_has_kernels_code_earlier_runs_and_the_packs_own_words(run_view: RunView) -> None:
    page = render_page(run_view)
    section = page.partition('<details id="v-memory-stream-op-copy-n-268435456"')[2]
    section = section.partition("Measure it again")[0]
    places = [section.index(f"<h3>{head}") for head in ("Time per launch", "Why", "History")]
    assert places == sorted(places)
    assert '<span class="del">-ld.global.v4.f32 %f1;</span>' in section
    assert "level shifted by +2.1" in section
    assert "What a pack adds." in page
    assert "&lt;4, at::native" in page
    assert "<4, at::native" not in page
    lost = Trace(variant=VARIANT, reason="its tracing ended: killed by SIGKILL")
    assert lost.reason in render_page(
        read(run_of().having(traces=(lost,)), baselines=baselines_of())
    )
