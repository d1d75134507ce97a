"""Kernel traces: what a launch is made of, how it is stored, and what is lost of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_counters import PACK
from test_panel import SETUP, STEADY, nasty
from test_runner import Log, request

from perfsuite.devices.protocol import Loaded, open_device
from perfsuite.devices.sass import plain_ptx
from perfsuite.engine.trace import MOST_KERNELS, artefact_of, dissect
from perfsuite.explain.trace import compared, put
from perfsuite.model import Code, Side, TracedKernel
from perfsuite.run.accept import accept
from perfsuite.run.run import execute
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers import panel as tracer
from perfsuite.workers.panel import Panel

PTX = (Path(__file__).parent / "data" / "scale.ptx").read_text("utf-8")


def dissected(fn: Callable[[Any], None]) -> Any:
    device = FakeDevice()
    context = device.context(1)
    return dissect(device, lambda: [lambda: fn(context)])


def test_ptx_is_the_same_wherever_its_source_lies() -> None:
    plain = plain_ptx(PTX, "scale")
    assert plain == plain_ptx(PTX.replace("1 6 0", "1 7 4").replace("/home/me", "/srv"), "scale")
    assert plain.splitlines()[-4:] == ["{", "\tld.param.u64 \t%rd1, [p];", "\tret;", "}"]
    assert not any(word in plain for word in ("other", "debug", "//", ".loc", "NVVM"))
    assert "other" in plain_ptx(PTX)


def test_kineto_s_events_are_kernels_with_their_shape() -> None:
    from perfsuite.devices.tensors import kernels_of

    launch = {"registers per thread": 32, "shared memory": 4096, "grid": [132, 1, 1], "stream": 7}
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 9.5, "dur": 1.0},
        {"ph": "X", "cat": "kernel", "name": "f", "ts": 2.5, "dur": 12.384, "args": launch},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 5.0},
        {"ph": "M", "name": "process_name"},
    ]
    shape: dict[str, Any] = {"grid": (132, 1, 1), "registers": 32, "shared_bytes": 4096}
    assert kernels_of(events) == [
        TracedKernel(name="f", count=1, duration_us=12.384, **shape),
        TracedKernel(name="Memset (Device)", count=1, duration_us=1.0),
    ]


def test_torch_s_operators_are_seen_without_what_they_call() -> None:
    import torch

    device = open_device("cpu")
    x = torch.randn(256, 256)
    found = dissect(device, lambda: [lambda: torch.softmax(x @ x, -1)])
    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert {"aten::mm", "aten::_softmax"} <= kernels.keys()
    assert all(kernel.count == 1 for kernel in (kernels["aten::mm"], kernels["aten::_softmax"]))
    assert found.reason == ""


def test_kernels_are_counted_by_launch_and_shape() -> None:
    def launch(ctx: Any) -> None:
        ctx.run_kernel("add", 5.0, grid=(8,))
        ctx.run_kernel("add", 7.0, grid=(16,))
        ctx.run_kernel("add", 5.0, grid=(8,))

    found = dissected(launch).kernels
    assert [(each.grid, each.count, each.duration_us) for each in found] == [
        ((8,), 2, 5.0),
        ((16,), 1, 7.0),
    ]


def test_an_artefact_is_of_our_own_code_and_of_nothing_else() -> None:
    device = FakeDevice()
    assert artefact_of(device) == ""
    device.compiled = {"a": Loaded("a", "a", "mov")}
    ours = artefact_of(device)
    device.compiled["b"] = Loaded("b", "b", "add", is_generated=True)
    assert artefact_of(device) == ours
    device.compiled["c"] = Loaded("c", "c", "mul")
    assert artefact_of(device) != ours


def test_what_is_cut_of_a_long_launch_is_said() -> None:
    def launch(ctx: Any) -> None:
        for index in range(MOST_KERNELS + 3):
            ctx.run_kernel(f"k{index}" + "x" * 2000, 5.0 + index)

    found = dissected(launch)
    assert len(found.kernels) == MOST_KERNELS
    assert found.reason == "3 more kernels, 18 us together, are left out"
    assert max(len(kernel.name) for kernel in found.kernels) < 1010


def test_a_hang_loses_one_trace_and_the_next_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Panel(replace(SETUP, slots=1)) as panel:
        with monkeypatch.context() as patch:
            patch.setattr(tracer, "LIMIT_S", 1.0)
            hung = panel.trace(nasty("hang"), Side.B, sets=1)
        after = panel.trace(STEADY[0], Side.B, sets=1)
    assert hung.reason.startswith("its tracing ended: trace took longer than its limit of 1 s")
    assert after.reason == "the profiler saw no kernel"


def test_a_diff_needs_both_texts(tmp_path: Path) -> None:
    old, new = (Code(name="f", ptx=letter * 24) for letter in "ab")
    put(tmp_path, new.ptx, "mov\nadd\nret")
    assert compared(tmp_path, new, old).diff == ""
    put(tmp_path, old.ptx, "mov\nmul\nret")
    assert compared(tmp_path, new, old).diff.splitlines()[-4:] == [" mov", "-mul", "+add", " ret"]
    assert compared(tmp_path, new, new).diff == ""
    (tmp_path / f"{old.ptx}.ptx.gz").write_bytes(b"damaged")
    assert compared(tmp_path, new, old).diff == ""


def test_what_moved_furthest_is_traced_first_then_what_may_become_a_baseline(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path, PACK.replace("[100]", "[100, 200, 400, 800]"))
    first = execute(replace(asked, variants=asked.variants[:3]), Log()).run
    assert len(first.traces) == 3
    # What is accepted without its kernels and does not move is traced to be counted alone.
    accept(first.having(traces=()), tmp_path / "baselines", reason="first", by="Ann")
    (tmp_path / "speeds.json").write_text('{"100": 1.02, "200": 1.1}')
    for counters, rest in ((False, {"800"}), (True, {"400", "800"})):
        text = execute(replace(asked, counters=counters), Log()).run_file.read_text("utf-8")
        most, less, *others = re.findall(r'"kind":"trace","variant":"\S+us=(\d+)\]"', text)
        assert (most, less, {*others}) == ("200", "100", rest)
