"""What a SKU reaches by the accepted times of the variants that packs call its ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from store_data import finished, ran

from perfsuite.cli import rendered
from perfsuite.judge import peaks as roofline
from perfsuite.judge.peaks import (
    BYTES,
    FLOP,
    GENERIC,
    PEAKS,
    STARTS,
    Rate,
    link_of,
    peaks_of,
    per_launch,
    with_measured,
)
from perfsuite.model import BaselineEntry, BaselineMetric, Pack, Tier, Work
from perfsuite.packs.find import packs_at
from perfsuite.report.data import rates_of
from perfsuite.run.accept import accept
from perfsuite.run.expected import find_expected
from perfsuite.run.project import Project
from perfsuite.store.baselines import Baselines, read_sku
from perfsuite.workers.catalogue import load_catalogue

ROOT = Path(__file__).parents[1]
H200 = PEAKS["nvidia-h200"]
IMPLS = ("torch", "triton", "cuda")
ADD = "memory.stream[op=add,n=268435456,impl=cuda]"
STARTS_US = {"relaunch": 256.0, "graph": 128.0}
VENDOR = """
import perfsuite
from perfsuite import Work, case, on_device

def declared(name, **fields):
    @case(name=name, axes={"n": [1000, 4000]}, smoke={"n": [1]}, source="a book",
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


def _stream(ops: Mapping[str, int]) -> dict[str, float]:
    return {
        f"memory.stream[op={op},n=268435456,impl={impl}]": 2.0**30 * count
        for op, count in ops.items()
        for impl in IMPLS
    }


def _gemms(case: str, impls: Iterable[str], *sizes: int) -> dict[str, float]:
    return {f"{case}m={m},n={m},k={m},impl={impl}]": 2.0 * m**3 for m in sizes for impl in impls}


BF16 = {
    **_gemms("compute.gemm[dtype=bf16,", ("torch", "triton"), 4096, 8192),
    **_gemms("hopper.wgmma_gemm[", ("cublas", "gluon"), 4096, 8192),
}
# Bytes or operations of one launch.
LINKS = {
    "hbm": _stream({"copy": 2, "scale": 2, "add": 3, "triad": 3}),
    "hbm_read": _stream({"dot": 2, "read": 1}),
    "hbm_write": _stream({"init": 1}),
    "l2": {
        f"memory.l2_sweep[kib={kib},impl=cuda]": 1024.0 * kib * (2**20 // kib)
        for kib in (16384, 24576, 32768)
    },
    "shared": {
        f"memory.bank_conflicts[{axes}]": 4.0 * 32 * 256 * 131073
        for axes in ("stride=1,impl=plain", "stride=4,impl=vectors")
    },
    "pcie": {f"memory.h2d[mib=256,direction={way},impl=pinned]": 2.0**28 for way in ("h2d", "d2h")},
}
OPERATIONS = {
    "bf16": BF16,
    "fp16": _gemms("compute.gemm[dtype=fp16,", ("torch",), 8192),
    "int8": _gemms("compute.gemm[dtype=int8,", ("torch",), 8192),
    "fp64": {
        **_gemms("compute.gemm[dtype=fp64,", ("torch",), 4096),
        "compute.fp64_emulation[m=4096,impl=fp64]": 2.0 * 4096**3,
    },
    "fp8": _gemms("compute.fp8_gemm[", ("fp8_tensorwise", "fp8_rowwise"), 4096, 8192),
    "tf32": _gemms("compute.gemm[dtype=tf32,", ("torch",), 4096),
    "fp32": {"compute.fma[steps=4096,impl=cuda]": 2.0**35},
}
KINDS = dict.fromkeys(LINKS, BYTES) | dict.fromkeys(OPERATIONS, FLOP)
# Kernels of one launch.
STARTED = {
    "launch": {"scheduling.persistent[steps=128,impl=relaunch]": 128.0},
    "graph_node": {"scheduling.persistent[steps=128,impl=graph]": 128.0},
}


@pytest.fixture(scope="module")
def packs() -> Sequence[Pack]:
    folders = [ROOT / "plugins" / name for name in ("memory", "compute", "hopper", "scheduling")]
    return load_catalogue([one for each in folders for one in packs_at(each)], tier=Tier.SMOKE)


def _accepted(variant: str, time_us: float, version: int = 1) -> BaselineEntry:
    metrics = {"time_us": BaselineMetric(center=time_us, unit="us")}
    return BaselineEntry(variant=variant, case_version=version, run="r", metrics=metrics)


def _rates(
    ceilings: Mapping[str, Mapping[str, float]], times: Mapping[str, float]
) -> dict[str, Rate]:
    reached = {
        name: max((1e6 * amount / times[each], each) for each, amount in own.items())
        for name, variants in ceilings.items()
        if (own := {each: amount for each, amount in variants.items() if each in times})
    }
    return {
        name: Rate(value, measured=True, source=f"{variant}, accepted baseline")
        for name, (value, variant) in reached.items()
    }


def test_packs_declare_what_is_a_ceiling_whatever_the_tier(packs: Sequence[Pack]) -> None:
    found: dict[str, dict[str, float]] = {}
    for name, variant in [
        (name, each) for pack in packs for name, own in pack.ceilings.items() for each in own
    ]:
        assert variant.work is not None
        amount, kind = per_launch(variant.work, name)
        found.setdefault(name, {})[variant.id] = amount
        assert kind == KINDS.get(name, STARTS)
        # A ceiling is what the roofline holds such work against.
        by = {BYTES: link_of(variant.work, H200), FLOP: variant.work.rate_dtype}
        held = by.get(kind, variant.work.start)
        assert held == name
    assert found == LINKS | OPERATIONS | STARTED


@pytest.mark.parametrize("slug", ["nvidia-h200-0282-000", "nvidia-h200-0282-001"])
def test_stored_baselines_give_the_peaks_of_these_ceilings(
    packs: Sequence[Pack], slug: str
) -> None:
    sku = read_sku(ROOT / "baselines" / slug)
    entries = Baselines.load([ROOT / "baselines"], sku).entries
    clocks = {name: each.metrics.get("time_us") for name, each in entries.items()}
    times = {name: clock.center for name, clock in clocks.items() if clock and clock.center > 0}
    links, operations = _rates(LINKS, times), _rates(OPERATIONS, times)
    assert {"hbm", "hbm_read", "hbm_write", "pcie"} <= links.keys()
    assert {"bf16", "fp8", "tf32"} <= operations.keys()
    peaks = with_measured(peaks_of(slug), entries.values(), packs)
    assert peaks.links == {**H200.links, **links}
    assert peaks.operations == {**H200.operations, **operations}
    assert peaks.starts == _rates(STARTED, times)
    assert peaks.starts["graph_node"].value > peaks.starts["launch"].value > 0


def test_ceiling_is_the_best_that_is_accepted_of_its_cases(packs: Sequence[Pack]) -> None:
    times = {
        "memory.stream[op=copy,n=268435456,impl=torch]": 500.0,
        ADD: 700.0,
        "memory.stream[op=copy,n=67108864,impl=cuda]": 1.0,
        "memory.l2_sweep[kib=24576,impl=cuda]": 100.0,
    }
    # What another version of the case moved is not known.
    other = _accepted("memory.stream[op=copy,n=268435456,impl=cuda]", 1.0, version=99)
    found = with_measured(H200, [*(_accepted(*each) for each in times.items()), other], packs)
    assert found.links["hbm"].value == pytest.approx(3 * 2**30 / 700e-6)
    assert "op=add" in found.links["hbm"].source
    assert found.links["l2"].value == pytest.approx(42 * 24 * 2**20 / 100e-6)
    assert found.links["pcie"] is H200.links["pcie"]
    assert found.operations == H200.operations
    l2 = Work(read_bytes=2**30, link="l2")
    assert roofline.efficiency(l2, found, 200.0) == pytest.approx(0.507, abs=1e-3)
    assert roofline.efficiency(l2, H200, 200.0) is None


def test_kernels_in_a_row_are_held_against_what_starts_them(packs: Sequence[Pack]) -> None:
    times = {f"scheduling.persistent[steps=128,impl={impl}]": us for impl, us in STARTS_US.items()}
    found = with_measured(H200, [_accepted(*each) for each in times.items()], packs)
    chain = Work(read_bytes=8192, write_bytes=8192, kernels=64)
    assert roofline.efficiency(chain, found, 160.0) == pytest.approx(0.8)
    graph = replace(chain, start="graph_node")
    assert roofline.efficiency(graph, found, 160.0) == pytest.approx(0.4)
    (rate, *_) = rates_of(graph, found, 160.0)
    assert rate.unit == "kernels/ms"
    assert rate.value == pytest.approx(400.0)
    # Not where nothing is known of starts, nor where the bytes take longer.
    assert roofline.efficiency(graph, H200, 160.0) == pytest.approx(2.3e-5, rel=0.1)
    large = replace(graph, read_bytes=2**30)
    assert not roofline.is_held_by_starts(large, found)
    assert rates_of(large, found, 300.0)[0].unit == "GB/s"
    # What holds a launch up for its noise is another question.
    assert roofline.work_class(graph, found, 64.0) == roofline.UNKNOWN


def test_ceiling_without_work_of_it_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(VENDOR, "utf-8")
    (vendor,) = load_catalogue(packs_at(tmp_path / "acme.py"), tier=Tier.FULL)
    own = replace(vendor.ceilings["fp7"][0], work=Work(read_bytes=1))
    entry = _accepted(own.id, 5.0, own.case.version)
    found = with_measured(H200, [entry], [replace(vendor, ceilings={"fp8": (own,)})])
    assert found == H200
    gemm = Work(flops=1e9, rate_dtype="fp8")
    assert roofline.efficiency(gemm, found, 200.0) == roofline.efficiency(gemm, H200, 200.0)


def test_of_a_product_that_is_not_listed_no_share_is_told(packs: Sequence[Pack]) -> None:
    entry = _accepted("memory.stream[op=copy,n=268435456,impl=torch]", 500.0)
    assert with_measured(GENERIC, [entry], packs) is GENERIC


def test_a_vendors_pack_declares_the_ceilings_of_its_own_device(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(VENDOR, encoding="utf-8")
    packs = load_catalogue(packs_at(tmp_path / "acme.py"), tier=Tier.SMOKE)
    entries = [_accepted(f"acme.own[n={n}]", us, version=2) for n, us in ((4000, 2.0), (1000, 0.5))]
    elsewhere = [_accepted(f"acme.anywhere[n={n}]", 0.1) for n in (4000, 1000)]
    found = with_measured(peaks_of("acme-a1"), [*entries, *elsewhere], packs)
    # The generic ones are another product's.
    assert {name: rate.value for name, rate in found.links.items()} == {"hbm": 8e9}
    assert {name: rate.value for name, rate in found.operations.items()} == {"fp7": 4e9}
    assert roofline.efficiency(Work(read_bytes=1000), found, 0.5) == pytest.approx(0.25)
    # On a product that is not its own, nobody said that these are all of its ceilings.
    assert with_measured(GENERIC, elsewhere, packs) is GENERIC
    listed = with_measured(H200, elsewhere, packs)
    assert listed.links["hbm"].value == pytest.approx(1.6e11)
    assert listed.links["pcie"] is H200.links["pcie"]


def test_ceiling_that_was_accepted_is_known_to_a_run_without_it(
    packs: Sequence[Pack], tmp_path: Path
) -> None:
    run = finished({"stream": 700.0, "other": 100.0})
    plain = [one.variant for one in run.variants]
    renamed = [replace(each, id=ADD) if each.case.name == "stream" else each for each in plain]
    of_it = {old.id: new.id for old, new in zip(run.variants, renamed, strict=True)}
    results = tuple(replace(each, variant=of_it[each.variant]) for each in run.results)
    accept(
        replace(run, variants=ran(*renamed)).having(results=results), tmp_path, reason="r", by="b"
    )
    later = replace(run, id="later", variants=run.variants[1:]).having(results=run.results[1:])
    found = find_expected([tmp_path], tmp_path / "none", run=later, packs=packs)
    assert found.reached is not None
    assert found.reached.links["hbm"].value == pytest.approx(3 * 2**30 / 700e-6, rel=1e-4)


def test_a_report_made_again_knows_the_ceilings_of_the_project_s_packs(tmp_path: Path) -> None:
    (tmp_path / "plugins").symlink_to(ROOT / "plugins")
    run = ROOT / "reports" / "example" / "run.jsonl"
    page = rendered(Project(tmp_path), [str(run)], tmp_path / "out", ROOT / "baselines")
    assert "impl=cuda], accepted baseline" in page.read_text("utf-8")
