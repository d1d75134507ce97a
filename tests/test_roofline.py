"""Bounds, classes and rates of work on products with known peaks."""

from __future__ import annotations

import pytest

from perfsuite.judge import peaks as roofline
from perfsuite.judge.peaks import GENERIC, PEAKS, peaks_of
from perfsuite.model import Work

H200 = PEAKS["nvidia-h200"]
COPY = Work(read_bytes=2**30, write_bytes=2**30)
GEMM = Work(flops=2 * 8192**3, read_bytes=4 * 8192**2, write_bytes=2 * 8192**2, rate_dtype="bf16")


def test_bound_is_the_longer_of_moving_and_computing() -> None:
    assert roofline.bound_us(COPY, H200) == pytest.approx(2**31 / 4.36e12 * 1e6)
    assert roofline.bound_us(GEMM, H200) == pytest.approx(1377.8, rel=1e-3)


def test_work_that_states_nothing_has_no_bound() -> None:
    assert roofline.bound_us(Work(), H200) is None
    assert roofline.efficiency(Work(), H200, 10.0) is None
    assert roofline.work_class(None, H200) == "unknown"
    assert roofline.work_class(Work(), H200) == "unknown"


def test_class_names_what_limits() -> None:
    both = Work(read_bytes=4.36e6, flops=798e6, rate_dtype="bf16")
    assert roofline.work_class(COPY, H200) == "memory"
    assert roofline.work_class(GEMM, H200) == "compute"
    assert roofline.work_class(both, H200) == "mixed"
    assert roofline.work_class(Work(read_bytes=1, link="pcie"), H200) == "transfer"


def test_what_stays_on_the_chip_is_memory_where_its_rate_is_known_and_no_transfer() -> None:
    work = Work(read_bytes=1e9, link="l2")
    assert roofline.work_class(work, H200, time_us=100.0) == "unknown"
    known = roofline.Peaks({"l2": roofline.Rate(1e13, measured=True, source="made up")}, {})
    assert roofline.work_class(work, known, time_us=100.0) == "memory"


def test_launch_far_below_its_bound_is_of_unknown_class() -> None:
    assert roofline.work_class(COPY, H200, time_us=520.0) == "memory"
    assert roofline.work_class(COPY, H200, time_us=5000.0) == "unknown"
    assert roofline.work_class(COPY, GENERIC, time_us=5000.0) == "memory"


def test_unstated_dtype_counts_as_fp32() -> None:
    assert roofline.bound_us(Work(flops=67e6), H200) == pytest.approx(1.0)


def test_efficiency_is_bound_over_time_and_needs_known_peaks() -> None:
    assert roofline.efficiency(COPY, H200, 525.0) == pytest.approx(0.938, abs=1e-3)
    assert roofline.efficiency(COPY, GENERIC, 525.0) is None


def test_gpu_count_does_not_change_the_peaks_and_a_slice_has_none() -> None:
    assert peaks_of("nvidia-h200-x2") is H200
    assert peaks_of("nvidia-h200-0282-001-x2") is H200
    assert peaks_of("nvidia-h200-mig-1g.18gb").is_generic
    assert peaks_of("acme-9000").is_generic


def test_rates_carry_units() -> None:
    found = roofline.rates(GEMM, 1400.0, H200)
    assert [(metric.name, metric.unit) for metric in found] == [
        ("gb_per_s", "GB/s"),
        ("tflop_per_s", "TFLOP/s"),
        ("ceiling_percent", "% of ceiling"),
    ]
    assert [metric.value for metric in found][1:] == pytest.approx([785.4, 98.4], abs=0.1)


def test_rates_leave_out_what_is_not_stated() -> None:
    assert [metric.name for metric in roofline.rates(COPY, 500.0, GENERIC)] == ["gb_per_s"]
    only = roofline.rates(Work(flops=1e9), 500.0, GENERIC)
    assert [metric.name for metric in only] == ["tflop_per_s"]


@pytest.mark.parametrize("slug", sorted(PEAKS))
def test_every_rate_names_its_source(slug: str) -> None:
    rates = [*PEAKS[slug].links.values(), *PEAKS[slug].operations.values()]
    assert all(rate.source and rate.value > 0 for rate in rates)
