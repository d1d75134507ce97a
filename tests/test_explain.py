"""What a change is made of, from made-up kernels of known truth, and wherever it is told."""

from __future__ import annotations

import json
import math

import pytest
from msgspec.structs import replace
from report_data import baselines_of, explained, run_of
from store_data import moved

from perfsuite.explain.why import Explanation, Kind, explain, headline, middle
from perfsuite.model import Change, Code, Health, Trace, TracedKernel
from perfsuite.report.data import RunView, SideView, read
from perfsuite.report.files import render_page, verdict_json
from perfsuite.report.view import PLAIN

SCALE = TracedKernel(name="scale_rows", count=1, duration_us=100.0, grid=(132, 1, 1), registers=64)
ADD = TracedKernel(name="add_rows", count=2, duration_us=10.0)
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


def said(explanation: Explanation) -> str:
    return headline(explanation).replace("\u202f", " ")


FACTS = ("registers", "spill_bytes")
WAYS = {"a": "", "b": "-\tst.f;\n+\tst.f;\n-\tld.f;\n+\t@%p1 ld.cs.f;\n+\tld.param.u64;\n"}
CODES = [
    Code(name="scale_rows", ptx=ptx, facts=dict(zip(FACTS, facts, strict=False)), diff=WAYS[ptx])
    for ptx, facts in (("a", (64, 0)), ("b", (128, 16)), ("a", (80, 0)))
]
LOST = "memory accesses ld.f → ld.cs.f, registers 64 → 128, spill bytes 0 → 16"
WHOLE = "(explains 100 % of the change)"
LETTER = "the compiled code is the same to the letter"
CAP = "power cap active"
SLOWER = replace(SCALE, duration_us=130.0)
CUTLASS = replace(SCALE, name="void cutlass_80_tensorop_128x128<float, 4>(float const*)")
NVJET = replace(SLOWER, name="nvjet_hsh_128x256_64x4")
SWITCH = f"library switch, another kernel for the matrix product: {NVJET.name} instead of "
BEFORE = {"driver": "575", "torch": "2.11", "new": "x"}


@pytest.mark.parametrize(
    ("moved", "before", "now", "told"),
    [
        (change(120.0, 130.0), side(SCALE, ADD), side(SCALE, replace(ADD, count=3)),
         f"add_rows runs 3 times a launch instead of 2 {WHOLE}"),
        (change(100.0, 130.0), side(SCALE, codes=(CODES[0],)),
         side(replace(SLOWER, registers=128), codes=(CODES[1],)), f"its code changed: {LOST}"),
        (change(100.0, 130.0), side(SCALE, codes=(CODES[0],)),
         side(replace(SLOWER, registers=80), codes=(CODES[2],)),
         "the same PTX otherwise assembled or launched: registers 64 → 80"),
        (change(100.0, 108.0, clock=math.log(1.0011 / 1.08), theta=0.001),
         side(SCALE, health=(FREE,) * 18), side(SCALE, health=(CAPPED,) * 14 + (FREE,) * 4),
         f"the SM clock was 7.3 % lower, {CAP} in 14 of 18 blocks: time +8.0 %, code +0.1 %"),
        (change(100.0, 130.0), side(SCALE, health=(FREE,)), side(SLOWER, health=(CAPPED, FREE)),
         f"the SM clock stayed, {CAP} in 1 of 2 blocks"),
        (change(100.0, 130.0), side(SCALE, environment=BEFORE),
         side(SLOWER, environment={"driver": "580", "torch": "2.11"}),
         "; what else differs: driver 575 → 580"),
        (change(100.0, 115.0), side(SCALE), side(SCALE, replace(ADD, name="fill", count=1)),
         "one more kernel, fill, takes 10.0 µs of each launch (explains 67 % of the change)"),
        (change(120.0, 150.0), side(CUTLASS, ADD), side(NVJET, ADD),
         f"{SWITCH}{middle(CUTLASS.name)}, 130 µs instead of 100 µs {WHOLE}"),
        (change(100.0, 130.0), side(SCALE, codes=(CODES[0],)), side(SLOWER, codes=(CODES[0],)),
         f"{WHOLE}, by the same code to the letter"),
        (change(110.0, 130.0), side(SCALE), side(SCALE),
         "+20.0 µs (100 % of the change) are outside kernels: gaps between them, and launching"),
        # A change finer than a trace is not pinned on a kernel.
        (change(100.0, 100.4), side(SCALE, artefact="a"),
         side(replace(SCALE, duration_us=100.3), artefact="a"),
         f"{LETTER}; in its trace no kernel became slower or faster"),
        (None, SideView(), side(SCALE), ""),
        (change(100.0, 130.0), SideView(), SideView(), ""),
    ],
)  # fmt: skip
def test_a_change_is_told_by_what_it_is_made_of(
    moved: Change | None, before: SideView, now: SideView, told: str
) -> None:
    found = said(explain(moved, before, now)).replace("\u2212", "-")
    assert found.endswith(told) if told else not found


def test_shares_and_the_rest_add_up_to_the_change() -> None:
    now = (replace(SCALE, duration_us=106.0), replace(ADD, duration_us=11.0))
    found = explain(change(125.0, 135.0), side(SCALE, ADD), side(*now))
    parts = [*(each.delta_us for each in found.kernels), found.rest_us]
    assert (parts, [each.share for each in found.kernels]) == ([6, 2, 2], [0.6, 0.2])
    assert said(found).startswith("scale_rows takes 106 µs instead of 100 µs (explains 60 % of")
    twice = "; add_rows takes 2 x 11.0 us instead of 2 x 10.0 us (explains 20 % of the change)"
    assert headline(found).translate(PLAIN).endswith(twice)
    # Where all moved the other way none explains anything.
    now = (replace(SCALE, duration_us=158.0), replace(ADD, duration_us=7.0))
    told = headline(explain(change(900.0, 880.0), side(SCALE, ADD), side(*now))).translate(PLAIN)
    assert told == "traced, its kernels moved by +52.0 us, which does not explain -20.0 us"


def test_a_kernel_that_went_explains_a_faster_launch() -> None:
    found = explain(change(120.0, 100.0), side(SCALE, ADD), side(SCALE))
    assert found.causes[0].kind is Kind.REMOVED
    assert said(found) == f"add_rows, 20.0 µs of a launch, is gone {WHOLE}"


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


def test_the_same_cycles_say_more_than_a_kind_of_work() -> None:
    moved = change(100.0, 108.0, clock=math.log(1 / 1.08), theta=0.04, beta=0.5)
    found = explain(moved, side(SCALE), side(SCALE))
    assert said(found) == "the SM clock was 7.4 % lower: time +8.0 %, SM cycles 0.0 %"
    assert not explain(replace(moved, theta=0.08, beta=0.0), side(SCALE), side(SCALE)).is_clock
    assert explain(change(100.0, 130.0), side(SCALE), side(SCALE, health=(CAPPED,))).clock is None


def test_long_names_keep_both_ends() -> None:
    fill = "at::native::FillFunctor<float>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {fill}, 1ul>(int)"
    assert middle(name) == "vectorized_elementwise_kernel<4, FillFunctor<float>, 1ul>"
    assert middle("x" * 500) == f"{'x' * 30}…{'x' * 30}"


VARIANT = "memory.stream[op=copy,n=268435456]"


@pytest.fixture(scope="module")
def run_view() -> RunView:
    return explained()


def test_programs_read_it_too(run_view: RunView) -> None:
    found = {one["variant"]: one["why"] for one in json.loads(verdict_json(run_view))["variants"]}
    assert "its code changed: registers 40" in found[VARIANT]
    assert found["memory.stream[op=copy,n=67108864]"] == ""


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
