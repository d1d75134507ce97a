"""What a SKU reaches: products' known peaks, and accepted times of what packs call ceilings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfsuite.cli import viewed
from perfsuite.devices import peaks as roofline
from perfsuite.devices.peaks import (
    BYTES,
    FLOP,
    GENERIC,
    PEAKS,
    STARTS,
    Rate,
    efficiency,
    link_of,
    peaks_of,
    per_launch,
    with_measured,
    work_class,
)
from perfsuite.model import BaselineEntry, BaselineMetric, Pack, Tier, Work
from perfsuite.packs.find import packs_at
from perfsuite.report.files import write_report
from perfsuite.run.config import Config
from perfsuite.store.runs import load_run
from perfsuite.workers.process import load_catalogue

ROOT = Path(__file__).parents[1]
H200 = PEAKS["nvidia-h200"]
COPY = Work(read_bytes=2**30, write_bytes=2**30)
GEMM = Work(flops=2 * 8192**3, read_bytes=4 * 8192**2, write_bytes=2 * 8192**2, rate_dtype="bf16")
L2 = roofline.Peaks({"l2": Rate(1e13, "made up", measured=True)}, {})
VENDOR = """
import perfsuite
from perfsuite import Work, case, on_device

def declared(name, **fields):
    @case(name=name, smoke={"n": 1}, nightly={"n": [1000, 4000]}, source="a book",
          work=lambda n: Work(read_bytes=3 * n, write_bytes=n, flops=2 * n, rate_dtype="fp7"),
          ceilings={"hbm": lambda n: n == 4000, "fp7": lambda n: n == 1000}, **fields)
    def build(ctx, n):
        '''Move n bytes.'''
    return build

@perfsuite.hookimpl
def perf_cases():
    return [declared("own", needs=[on_device("acme")], version=2), declared("anywhere")]

@perfsuite.hookimpl
def perf_device():
    return perfsuite.Accelerator(name="acme", opens="acme:A1", units=("a1-0",))
"""


def test_gpu_count_does_not_change_the_peaks_and_a_slice_has_none() -> None:
    assert peaks_of("nvidia-h200-x2") is peaks_of("nvidia-h200") is H200
    assert peaks_of("nvidia-h200-mig-1g.18gb").is_generic
    assert peaks_of("acme-9000").is_generic
    assert efficiency(COPY, GENERIC, 525.0) is efficiency(Work(), H200, 10.0) is None
    assert work_class(COPY, GENERIC, 5000.0) == "memory"
    # What stays on the chip is no transfer.
    assert work_class(Work(read_bytes=1e9, link="l2"), L2, 100.0) == "memory"
    # An unstated dtype counts as fp32.
    assert efficiency(Work(flops=67e6), H200, 2.0) == pytest.approx(0.5)
    for peaks in PEAKS.values():
        rates = [*peaks.links.values(), *peaks.operations.values()]
        assert all(rate.source and rate.value > 0 for rate in rates)


@pytest.fixture(scope="module")
def packs() -> Sequence[Pack]:
    folders = [ROOT / "plugins" / name for name in ("memory", "compute", "hopper", "scheduling")]
    return load_catalogue([one for each in folders for one in packs_at(each)], tier=Tier.SMOKE)


def _accepted(variant: str, time_us: float, version: int = 1) -> BaselineEntry:
    metrics = {"time_us": BaselineMetric(center=time_us, unit="us")}
    return BaselineEntry(variant=variant, case_version=version, run="r", metrics=metrics)


def test_packs_declare_what_is_a_ceiling_whatever_the_tier(packs: Sequence[Pack]) -> None:
    found: dict[str, dict[str, float]] = {}
    every = ((name, each) for pack in packs for name, own in pack.ceilings.items() for each in own)
    for name, variant in every:
        work = variant.work or Work()
        amount, kind = per_launch(work, name)
        found.setdefault(name, {})[variant.id] = amount
        # A ceiling is what the roofline holds such work against.
        assert {BYTES: link_of(work, H200), FLOP: work.rate_dtype, STARTS: work.start}[kind] == name
    # Bytes, operations or kernels of one launch, by the formulas of the cases.
    assert found == json.loads((ROOT / "tests/data/ceilings.json").read_text())


def test_ceiling_is_the_best_that_is_accepted_of_its_cases(packs: Sequence[Pack]) -> None:
    times = {
        "memory.stream[op=copy,n=268435456,impl=torch]": 500.0,
        "memory.stream[op=add,n=268435456,impl=cuda]": 700.0,
        "memory.stream[op=copy,n=67108864,impl=cuda]": 1.0,
        "memory.l2_sweep[kib=24576,impl=cuda]": 100.0,
    }
    # What another version of the case moved is not known.
    other = _accepted("memory.stream[op=copy,n=268435456,impl=cuda]", 1.0, version=99)
    entries = [*(_accepted(*each) for each in times.items()), other]
    found = with_measured(H200, entries, packs)
    assert found.links["hbm"].value == pytest.approx(3 * 2**30 / 700e-6)
    assert "op=add" in found.links["hbm"].source
    assert found.links["l2"].value == pytest.approx(42 * 24 * 2**20 / 100e-6)
    assert found.links["pcie"] is H200.links["pcie"]
    assert found.operations == H200.operations
    assert efficiency(Work(read_bytes=2**30, link="l2"), found, 200.0) == pytest.approx(0.507, 1e-2)
    # Of a product that is not listed no share is told.
    assert with_measured(GENERIC, entries, packs) == GENERIC


def test_kernels_in_a_row_are_held_against_what_starts_them(packs: Sequence[Pack]) -> None:
    times = {f"scheduling.persistent[steps=128,impl={impl}]": us
             for impl, us in (("relaunch", 256.0), ("graph", 128.0))}  # fmt: skip
    found = with_measured(H200, [_accepted(*each) for each in times.items()], packs)
    chain = Work(read_bytes=8192, write_bytes=8192, kernels=64)
    graph = replace(chain, start="graph_node")
    assert efficiency(chain, found, 160.0) == pytest.approx(0.8)
    assert efficiency(graph, found, 160.0) == pytest.approx(0.4)
    (value, unit), *_ = roofline.rates(graph, 160.0, found).values()
    assert (round(value), unit) == (400, "kernels/ms")
    # Not where nothing is known of starts, nor where the bytes take longer.
    assert efficiency(graph, H200, 160.0) == pytest.approx(2.3e-5, rel=0.1)
    (_, unit), *_ = roofline.rates(replace(graph, read_bytes=2**30), 300.0, found).values()
    assert unit == "GB/s"
    # What holds a launch up for its noise is another question.
    assert work_class(graph, found, 64.0) == "unknown"


def test_a_vendors_pack_declares_the_ceilings_of_its_own_device(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(VENDOR, encoding="utf-8")
    (vendor,) = load_catalogue(packs_at(tmp_path / "acme.py"), tier=Tier.SMOKE)
    entries = [_accepted(f"acme.own[n={n}]", us, version=2) for n, us in ((4000, 2.0), (1000, 0.5))]
    elsewhere = [_accepted(f"acme.anywhere[n={n}]", 0.1) for n in (4000, 1000)]
    found = with_measured(peaks_of("acme-a1"), [*entries, *elsewhere], [vendor])
    # The generic ones are another product's.
    assert {name: rate.value for name, rate in found.links.items()} == {"hbm": 8e9}
    assert {name: rate.value for name, rate in found.operations.items()} == {"fp7": 4e9}
    assert efficiency(Work(read_bytes=1000), found, 0.5) == pytest.approx(0.25)
    # On a product that is not its own, nobody said that these are all of its ceilings.
    assert with_measured(GENERIC, elsewhere, [vendor]) == GENERIC
    assert with_measured(H200, elsewhere, [vendor]).links["hbm"].value == pytest.approx(1.6e11)
    # One without work of it changes nothing.
    own = replace(vendor.ceilings["fp7"][0], work=Work(read_bytes=1))
    assert with_measured(H200, entries, [replace(vendor, ceilings={"fp8": (own,)})]) == H200


def test_a_report_made_again_knows_the_ceilings_of_the_project_s_packs(tmp_path: Path) -> None:
    (tmp_path / "plugins").symlink_to(ROOT / "plugins")
    run = ROOT / "reports" / "example" / "run.jsonl"
    project = Config(root=tmp_path, baselines=(ROOT / "baselines",)).chosen()
    page = write_report(viewed(project, load_run(run)), tmp_path / "out")
    assert "impl=cuda], accepted baseline" in page.read_text("utf-8")
