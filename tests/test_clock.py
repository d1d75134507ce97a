"""DeviceClock: pytest-benchmark's own tables, files and comparisons have the device's times."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from citizens_data import citizen_in, loaded, plain
from docs_data import ROOT, blocks_of

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.devices.protocol import Group, Sample
from perfsuite.interop import DeviceClock
from perfsuite.testing import fake
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers.process import inventory

pytest_plugins = ["pytester"]

CONFTEST = """
from perfsuite.testing import DeviceClock
from perfsuite.testing import fake
class Scripted(fake.FakeDevice):
    within = between = 0.0
fake.DEFAULT_US = 1.5
device = Scripted()
clock, context = DeviceClock(device), device.context(0)
"""
TESTS = """
import pytest
from conftest import clock, context
calls = []
def work(factor):
    calls.append(factor)
    context.spend(1e6 * factor * len(calls))
    return len(calls)
@pytest.mark.benchmark(timer=clock)
def test_work(benchmark):
    benchmark.extra_info.update(clock.extra_info())
    last = benchmark.pedantic(clock.timed(work), args=(10 * SLOWER,), rounds=5)
    assert last == len(calls) == 5
@pytest.mark.benchmark(timer=clock)
def test_iterations(benchmark):
    calls.clear()
    benchmark.pedantic(clock.timed(work), args=(1,), rounds=2, iterations=3, warmup_rounds=1)
@pytest.mark.benchmark(timer=clock)
def test_others(benchmark):
    benchmark.pedantic(clock.timed(context.spend), args=(5.0,), rounds=2)
"""
WRONG = """
import pytest
from conftest import clock, context
@pytest.mark.benchmark(timer=clock)
def test_automatic(benchmark):
    benchmark(clock.timed(context.spend), 5.0)
@pytest.mark.benchmark(timer=clock)
def test_untimed(benchmark):
    benchmark.pedantic(context.spend, args=(5.0,), rounds=1)
@pytest.mark.benchmark(timer=clock)
def test_raising(benchmark):
    benchmark.pedantic(clock.timed(int), args=("x",), rounds=2)
@pytest.mark.benchmark(timer=clock)
def test_right(benchmark):
    benchmark.pedantic(clock.timed(context.spend), args=(5.0,), rounds=2)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose conftest has a clock of a device that takes what it is told."""
    return citizen_in(pytester, monkeypatch, conftest=CONFTEST)


def bench(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return plain(project, *loaded("pytest_benchmark.plugin"), *args)


def told(file: Path) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(file.read_text("utf-8"))["benchmarks"]}


def test_tables_files_and_comparisons_have_the_times_of_the_device(
    project: pytest.Pytester,
) -> None:
    (page,) = [b for b in blocks_of(ROOT / "docs" / "pytest.md") if "file" in b.said]
    example = page.said["file"]
    (project.path / example).write_text(page.text, encoding="utf-8")
    project.makepyfile(test_work=TESTS.replace("SLOWER", "1"), test_wrong=WRONG)
    loaded("torch")  # what the example needs
    saved = ("--benchmark-json=b.json", "--benchmark-save=before")
    files = ("test_work.py", "test_wrong.py", example)
    result = bench(project, *files, *saved, "--benchmark-columns=min,max,rounds")
    result.assert_outcomes(passed=5, failed=3)
    # What the clock does not see is an error.
    said = "*UsageError: DeviceClock('fake') was read twice without a timed call between"
    result.stdout.fnmatch_lines(
        ["*_ test_automatic _*", said, "*_ test_untimed _*", said, "*_ test_raising _*", "*ValueE*"]
    )
    result.stdout.fnmatch_lines(
        ["Name (time in us)*", "test_others * 5.0000 (1.0) * 2", "test_work * 50,000,000.0000 * 5"]
    )
    found = told(project.path / "b.json")
    work = found["test_work"]
    assert work["stats"]["data"] == pytest.approx([10.0, 20.0, 30.0, 40.0, 50.0], rel=1e-12)
    assert work["extra_info"] == {"sku": "fake", "unit": "fa4e00000000", "clock": "fake"}
    assert work["options"]["timer"] == "DeviceClock('fake')"
    # Of 3 to warm up, of 2 rounds with 3 each: launches 4 to 6, then 7 to 9.
    assert found["test_iterations"]["stats"]["data"] == pytest.approx([5.0, 8.0])
    project.makepyfile(test_work=TESTS.replace("SLOWER", "1.2"))
    compared = ("--benchmark-compare=0001", "--benchmark-compare-fail=median:19%")
    result = bench(project, "test_work.py", *compared)
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*Performance has regressed*"])
    (shown,) = [one for one in found.values() if one["fullname"].startswith(example)]
    assert len(shown["stats"]["data"]) == 20
    told_of = shown["extra_info"]
    assert told_of.keys() == {"sku", "unit", "clock"}
    assert (told_of["clock"] == "host") == told_of["sku"].startswith("cpu-")


@pytest.mark.parametrize("name", ["gpu", "cuda"])
def test_a_device_that_cannot_be_opened_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("cpu", "tensors"):
        monkeypatch.delitem(sys.modules, f"perfsuite.devices.{module}", raising=False)
    why = "unknown device 'gpu'" if name == "gpu" else "need(s)? torch"
    with pytest.raises(DeviceError, match=why):
        DeviceClock(name).extra_info()


@pytest.mark.parametrize("time_us", [1.5, math.nan])
def test_a_call_without_work_has_no_time(time_us: float) -> None:
    class Idle(FakeDevice):
        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            group()
            return [Sample(time_us if count == 1 else 1.5)] * count

    clock = DeviceClock(Idle())
    clock()
    with pytest.raises(DeviceError, match=r"saw (1.5|nan) us of a timed call"):
        clock.timed(len)("abc")
    assert clock() == 0.0


def test_readings_come_in_pairs_and_a_spin_lasts_as_long_as_the_fastest_issue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spins: list[float] = []

    class Noted(FakeDevice):
        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            spins.append(conditions["spin_us"])
            return super().sample(group, count, **conditions)

    monkeypatch.setattr(fake, "DEFAULT_US", 1.5)
    device = Noted()
    clock = DeviceClock(device)
    call = clock.timed(device.context(0).spend)
    call(5.0)  # outside of a round, as the last one of several iterations
    assert clock() > 0
    with pytest.raises(UsageError, match="read twice"):
        clock()
    start = clock()
    call(5.0)
    assert clock() - start == pytest.approx(5e-6, rel=0.05)
    empty, first, *rest = spins
    assert (empty, first) == (0.0, 26_000.0)
    assert all(0 < spin < first for spin in rest)


ON_A_GPU = """
import pytest, torch
from perfsuite.testing import DeviceClock
clock = DeviceClock("cuda")
@pytest.mark.benchmark(timer=clock)
@pytest.mark.parametrize("size", [512, 4096])
def test_gpu(benchmark, size):
    x = torch.randn(size, size, device="cuda")
    stream = torch.cuda.current_stream()
    benchmark.extra_info.update(clock.extra_info())
    product = benchmark.pedantic(clock.timed(torch.matmul), args=(x, x), warmup_rounds=1, rounds=9)
    torch.testing.assert_close(product, x @ x)
    assert torch.cuda.current_stream() == stream
    with pytest.raises(Exception, match="no work"):
        clock.timed(sum)(range(9))
"""


@pytest.mark.skipif(not inventory(), reason="needs a GPU")
def test_a_gpu_s_times_are_in_the_file(project: pytest.Pytester) -> None:
    project.makepyfile(test_gpu=ON_A_GPU)
    bench(project, "test_gpu.py", "--benchmark-json=b.json").assert_outcomes(passed=2)
    small, large = told(project.path / "b.json").values()
    assert small["extra_info"]["clock"] == "cuda"
    assert 0.5e-6 < small["stats"]["median"] < large["stats"]["median"] < 0.1
