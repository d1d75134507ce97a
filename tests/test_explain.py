"""What a change is made of, from made-up kernels of known truth."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from perfsuite.explain.parts import Explanation, Kind, explain
from perfsuite.explain.words import headline, middle
from perfsuite.model import Change, Code, Health, TracedKernel
from perfsuite.report.data import Side

SCALE = TracedKernel(name="scale_rows", count=1, duration_us=100.0, grid=(132, 1, 1), registers=64)
ADD = TracedKernel(name="add_rows", count=2, duration_us=10.0)
CAPPED = Health(reasons=("sw_power_cap",))
FREE = Health()


def change(
    before_us: float, now_us: float, *, clock: float = 0.0, theta: float = 0.0, beta: float = 0.0
) -> Change:
    return Change(
        metric="time_us",
        unit="us",
        baseline=before_us,
        current=now_us,
        theta=theta or now_us / before_us - 1,
        low=0.0,
        high=0.0,
        threshold=0.0025,
        gate=0.01,
        detectable=0.001,
        time_change=math.log(now_us / before_us),
        clock_change=clock,
        beta=beta,
    )


def side(*kernels: TracedKernel, **rest: object) -> Side:
    return Side(kernels=kernels, **rest)  # type: ignore[arg-type]


def said(explanation: Explanation) -> str:
    return headline(explanation).replace("\u202f", " ")


def test_shares_and_the_rest_add_up_to_the_change() -> None:
    now = (replace(SCALE, duration_us=106.0), replace(ADD, duration_us=11.0))
    found = explain(change(125.0, 135.0), side(SCALE, ADD), side(*now))
    assert [each.delta_us for each in found.kernels] == [6.0, 2.0]
    assert [each.share for each in found.kernels] == [pytest.approx(0.6), pytest.approx(0.2)]
    assert found.rest_us == pytest.approx(2.0)
    assert said(found).startswith("scale_rows takes 106 µs instead of 100 µs (60 % of the change)")


def test_a_kernel_that_runs_more_often_is_told_by_its_count() -> None:
    found = explain(change(120.0, 130.0), side(SCALE, ADD), side(SCALE, replace(ADD, count=3)))
    assert said(found) == "add_rows runs 3 times a launch instead of 2 (100 % of the change)"


def test_a_kernel_that_went_explains_a_faster_launch() -> None:
    found = explain(change(120.0, 100.0), side(SCALE, ADD), side(SCALE))
    assert found.causes[0].kind is Kind.REMOVED
    assert said(found) == "add_rows, 20.0 µs of a launch, is gone (100 % of the change)"


def test_kernels_that_moved_the_other_way_explain_nothing() -> None:
    now = replace(SCALE, duration_us=158.0)
    found = explain(change(900.0, 880.0), side(SCALE), side(now))
    told = "traced, its kernels moved by +58.0 µs, which does not explain -20.0 µs"
    assert said(found).replace("\u2212", "-") == told


def test_kernels_of_one_name_are_told_apart_by_shape() -> None:
    small = replace(SCALE, grid=(8, 1, 1), duration_us=9.0)
    found = explain(change(109.0, 119.0), side(SCALE, small), side(
        replace(small, duration_us=19.0), SCALE
    ))  # fmt: skip
    kinds = {each.now.grid[0]: each.kind for each in found.kernels if each.now}
    assert kinds == {132: Kind.SAME, 8: Kind.CHANGED}


def test_kernels_of_other_roles_do_not_replace_each_other() -> None:
    gone = TracedKernel(name="ampere_sgemm_128x64", count=1, duration_us=50.0)
    new = [replace(gone, name=name) for name in ("nvjet_hsh_64x8", "flash_fwd_kernel")]
    found = explain(change(100.0, 150.0), side(gone, SCALE), side(*new, SCALE))
    kinds = {each.now.name: each.kind for each in found.kernels if each.now}
    assert kinds["nvjet_hsh_64x8"] is Kind.REPLACED
    assert kinds["flash_fwd_kernel"] is Kind.ADDED


def test_lost_registers_and_tensor_cores_are_told_before_other_facts() -> None:
    facts = {"instructions": 500.0, "registers": 64.0, "spill_bytes": 0.0, "tensor_core_ops": 16.0}
    worse = {"instructions": 900.0, "registers": 128.0, "spill_bytes": 16.0, "tensor_core_ops": 0.0}
    codes = [Code(name="scale_rows", ptx=ptx, facts=f) for ptx, f in (("a", facts), ("b", worse))]
    now = replace(SCALE, duration_us=130.0, registers=128)
    found = explain(
        change(100.0, 130.0), side(SCALE, codes=(codes[0],)), side(now, codes=(codes[1],))
    )
    assert said(found).endswith(
        "its code changed: registers 64 → 128, spill bytes 0 → 16, tensor core ops 16 → 0, "
        "instructions 500 → 900"
    )


def test_the_same_ptx_assembled_otherwise_is_the_assembler_s_doing() -> None:
    codes = [Code(name="scale_rows", ptx="a", facts={"registers": n}) for n in (64.0, 80.0)]
    now = replace(SCALE, duration_us=130.0, registers=80)
    found = explain(
        change(100.0, 130.0), side(SCALE, codes=(codes[0],)), side(now, codes=(codes[1],))
    )
    assert said(found).endswith("the same PTX otherwise assembled or launched: registers 64 → 80")


def test_a_lower_clock_at_the_same_cycles_explains_the_time() -> None:
    moved = change(100.0, 108.0, clock=math.log(1.0011 / 1.08), theta=0.001)
    health = (CAPPED,) * 14 + (FREE,) * 4
    found = explain(moved, side(SCALE, health=(FREE,) * 18), side(SCALE, health=health))
    assert said(found) == (
        "the SM clock was 7.3 % lower, power cap active in 14 of 18 blocks: time +8.0 %, "
        "code +0.1 %"
    )


def test_the_same_cycles_say_more_than_a_kind_of_work() -> None:
    moved = change(100.0, 108.0, clock=math.log(1 / 1.08), theta=0.04, beta=0.5)
    found = explain(moved, side(SCALE), side(SCALE))
    assert said(found) == "the SM clock was 7.4 % lower: time +8.0 %, SM cycles 0.0 %"
    memory = explain(replace(moved, theta=0.08, beta=0.0), side(SCALE), side(SCALE))
    assert not memory.is_clock


def test_a_clock_that_stayed_is_no_story() -> None:
    found = explain(change(100.0, 130.0), side(SCALE), side(SCALE, health=(CAPPED,)))
    assert found.clock is None


def test_a_power_cap_that_is_new_is_told_where_the_clock_stayed() -> None:
    now = side(replace(SCALE, duration_us=130.0), health=(CAPPED, FREE))
    found = explain(change(100.0, 130.0), side(SCALE, health=(FREE,)), now)
    assert said(found).endswith("the SM clock stayed, power cap active in 1 of 2 blocks")


def test_what_differs_in_the_environment_is_told_last() -> None:
    before = side(SCALE, environment={"driver": "575", "torch": "2.11", "new": "x"})
    now = side(replace(SCALE, duration_us=130.0), environment={"driver": "580", "torch": "2.11"})
    found = said(explain(change(100.0, 130.0), before, now))
    assert found.endswith("; what else differs: driver 575 → 580")


def test_a_change_finer_than_a_trace_is_not_pinned_on_a_kernel() -> None:
    now = side(replace(SCALE, duration_us=100.3), artefact="a")
    found = explain(change(100.0, 100.4), side(SCALE, artefact="a"), now)
    assert said(found) == (
        "the code compiled here is the same to the letter: the machine or a library changed, not "
        "this kernel; no kernel changed by as much as a trace can tell"
    )


def test_nothing_known_explains_nothing() -> None:
    assert said(explain(None, Side(), side(SCALE))) == ""
    assert said(explain(change(100.0, 130.0), Side(), Side())) == ""


def test_long_names_keep_both_ends() -> None:
    fill = "at::native::FillFunctor<float>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {fill}, 1ul>(int)"
    assert middle(name) == "vectorized_elementwise_kernel<4, FillFunctor<float>, 1ul>"
    assert middle("x" * 500) == f"{'x' * 30}…{'x' * 30}"
