"""What Nsight Compute counts: asked for, read, joined to traced kernels, stored and compared.

No recorded log is at hand: those here are written by hand, in the form that Nsight Compute's
documentation and others' parsers give for ``--csv --page raw``.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from explained_data import explained
from msgspec.structs import replace
from store_data import SKU
from test_runner import Log, request
from test_tracing import COPY, KERNELS, entry_of, traced_run

from perfsuite import cli as doctor
from perfsuite.boundary import DeviceError
from perfsuite.explain import counters
from perfsuite.explain.counters import METRICS, Counted, Counter, joined, read
from perfsuite.explain.parts import Side, explain
from perfsuite.model import Arm, Change, Gpu, TracedKernel, Variant
from perfsuite.report.html import render_render
from perfsuite.report.why import headline
from perfsuite.run.accept import accept
from perfsuite.run.run import Outcome, execute
from perfsuite.store.runs import load_run
from perfsuite.workers.process import Site

pytest_plugins = ["pytester"]

BLOCK, GRID = (256, 1, 1), (132, 1, 1)
SCALE = TracedKernel(name="scale_rows", count=1, duration_us=9.0, grid=GRID, block=BLOCK)
HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
HEAD += '"Block Size","Grid Size","Device","CC",'
DENIED = (
    "==PROF== Connected to process 9012 (/usr/bin/python3)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0.\n"
)


def log(*kernels: tuple[str, float | str], names: tuple[str, ...] = tuple(METRICS)) -> str:
    """Return a log of kernels, of each of whose counters there are so many."""
    metrics = [METRICS[name] for name in names]
    lines = [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        '==PROF== Profiling "scale_rows" - 0: 0%....50%....100% - 3 passes',
        HEAD + ",".join(f'"{metric}"' for metric in sorted(metrics)),
        ",".join(['""'] * 11 + ['"sector"'] * len(metrics)),
    ]
    for index, (name, count) in enumerate(kernels):
        number = count if isinstance(count, str) else f"{count:,}"
        row = [str(index), "4711", "python3.12", "127.0.0.1", name, "1", "7"]
        row += ["(256, 1, 1)", "(132, 1, 1)", "0", "9.0", *[number] * len(metrics)]
        lines.append(",".join(f'"{cell}"' for cell in row))
    return "\n".join([*lines, "==PROF== Disconnected from process 4711", ""])


def counted(name: str, count: float) -> Counted:
    return Counted(name, GRID, BLOCK, {"sectors_read": count, "bank_conflicts": 0.0})


def test_kernels_are_read_with_their_shape_and_counters() -> None:
    first, second = read(log(("scale_rows", 4_194_304), ("void add<4>(float *)", 0)))
    assert (first.name, first.grid, first.block) == ("scale_rows", GRID, BLOCK)
    assert first.counters == dict.fromkeys(METRICS, 4_194_304.0)
    assert second.name == "void add<4>(float *)"
    assert set(second.counters.values()) == {0.0}


def test_what_a_chip_does_not_count_is_left_out() -> None:
    for said in ("n/a", "nan", "inf"):
        (kernel,) = read(log(("f", said)))
        assert kernel.counters == {}
    (kernel,) = read(log(("f", 7), names=("sectors_read", "bank_conflicts")))
    assert kernel.counters == {"sectors_read": 7.0, "bank_conflicts": 7.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DENIED, "ncu says: ERR_NVGPUCTRPERM - The user does not have permission"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "counted no kernel"),
        ("", "counted no kernel"),
        ("==ERROR== The application returned an error code (1).", "counted no kernel"),
        ('"ID","Process ID","Kernel Name"\n', "no column 'Block Size': it is too old or too new"),
        (log(("f" * 200_000, 1)), "ncu's table cannot be read: field larger than field limit"),
    ],
)
def test_a_log_without_counters_says_why(text: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said.replace("(", r"\(")):
        read(text)


def test_demanglers_agree_on_functions_and_shapes() -> None:
    traced = replace(SCALE, name="void (anonymous namespace)::a::add<4>(float*, unsigned long)")
    (found,) = joined([traced], [counted("void <unnamed>::a::add<4>(float *, unsigned long)", 5)])
    assert found.counters == {"sectors_read": 5.0, "bank_conflicts": 0.0}
    elsewhere = replace(traced, grid=(8, 1, 1))
    assert joined([elsewhere], [counted("add", 5)])[0].counters == {}


def test_a_kernel_that_runs_often_has_the_counters_of_one_run() -> None:
    (found,) = joined([replace(SCALE, count=2)], [counted("scale_rows", n) for n in (10, 20)])
    assert found.counters["sectors_read"] == 15


def test_kernels_of_one_template_are_told_apart_by_whole_name() -> None:
    one, two = (replace(SCALE, name=f"void f<{type_}>({type_}*)") for type_ in ("int", "float"))
    rows = [counted("void f<float>(float *)", 8), counted("void f<int>(int *)", 4)]
    assert [each.counters["sectors_read"] for each in joined([one, two], rows)] == [4, 8]


def test_kernels_that_cannot_be_told_apart_have_no_counters() -> None:
    wide = replace(SCALE, registers=64)
    found = joined([SCALE, wide], [counted("scale_rows", 5), counted("scale_rows", 7)])
    assert [each.counters for each in found] == [{}, {}]
    memset = TracedKernel(name="Memset (Device)", count=1, duration_us=1.0)
    assert joined([memset], [counted("scale_rows", 5)])[0].counters == {}


PACK = """
    import os
    import time
    import perfsuite

    @perfsuite.case(axes={"us": [100, 200]}, source="made up")
    def double(ctx, us):
        '''Double numbers in a kernel that takes as long as the axis says, times FACTOR.'''
        if os.environ.get("UNDER_NCU") == "crash":
            raise ValueError("not under ncu")
        if os.environ.get("UNDER_NCU") == "refuse":
            raise perfsuite.CaseError("no such shape", remedy="choose another")
        if os.environ.get("UNDER_NCU") == "hang":
            time.sleep(60)

        def fn(x):
            time_us = us * float(os.environ.get("FACTOR", "1"))
            ctx.run_kernel("scale_rows", time_us, grid=(132, 1, 1), block=(256, 1, 1))
            return [2 * value for value in x]

        return perfsuite.Workload(
            fn=fn,
            make_inputs=lambda rng: (rng.randn(16),),
            reference=lambda x: [value + value for value in x],
            wrong=lambda x: list(x),
        )

    @perfsuite.hookimpl
    def perf_cases():
        return [double]
"""
NCU = """\
    #!{python}
    import os, subprocess, sys
    from pathlib import Path
    words = sys.argv[1:]
    program = words[words.index("--metrics") + 2:]
    environment = {{**os.environ, "UNDER_NCU": {mode!r}}}
    code = subprocess.run(program, env=environment).returncode
    log = Path({log!r}).read_text() if code == 0 else "==PROF== Connected to process 1"
    Path(words[words.index("--log-file") + 1]).write_text(log)
    with open({calls!r}, "a") as file:
        print(*words, file=file)
    sys.exit(code)
"""


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put an ncu on the PATH that runs its program and writes this log; return its calls."""

    def make(text: str, mode: str = "") -> Path:
        folder, calls = tmp_path / "bin", tmp_path / "calls"
        folder.mkdir(exist_ok=True)
        (tmp_path / "log.csv").write_text(text, "utf-8")
        paths = {"log": str(tmp_path / "log.csv"), "calls": str(calls)}
        script = textwrap.dedent(NCU).format(python=sys.executable, mode=mode, **paths)
        (folder / "ncu").write_text(script, "utf-8")
        (folder / "ncu").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return calls

    return make


def whole(tmp_path: Path, **fields: Any) -> Outcome:
    return execute(request(tmp_path, PACK, counters=True, **fields), Log())


def notes(outcome: Outcome) -> list[str]:
    return [note for note in outcome.run.notes if "counters" in note]


def test_a_run_counts_what_it_traces_and_stores_it(
    tmp_path: Path, ncu: Callable[..., Path]
) -> None:
    calls = ncu(log(("scale_rows", 4096)))
    outcome = whole(tmp_path)
    assert notes(outcome) == []
    found = [kernel.counters for trace in outcome.run.traces for kernel in trace.kernels]
    assert found == [dict.fromkeys(METRICS, 4096.0)] * 2
    assert load_run(outcome.run_file) == outcome.run
    assert '"sectors_read":4096,' in outcome.run_file.read_text("utf-8")
    assert len(calls.read_text("utf-8").splitlines()) == 2


def test_a_run_says_what_was_counted_otherwise(
    tmp_path: Path, ncu: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("sectors_read", "bank_conflicts")
    ncu(log(("scale_rows", 4_194_304), names=names))
    accept(whole(tmp_path).run, tmp_path / "baselines", reason="first", by="Ann")
    ncu(log(("scale_rows", 8_388_608), names=names))
    monkeypatch.setenv("FACTOR", "2")
    now = whole(tmp_path)
    entry = now.baselines["acme.double[us=100]"]
    (trace,) = (each for each in now.run.traces if each.variant == entry.variant)
    (verdict,) = (each for each in now.run.verdicts if each.variant == entry.variant)
    found = explain(verdict.changes[0], Side(kernels=entry.kernels), Side(kernels=trace.kernels))
    assert headline(found).endswith(
        "sectors read 4.19\u202fM \u2192 8.39\u202fM, bank conflicts 4.19\u202fM \u2192 8.39\u202fM"
    )


def test_a_refusal_is_a_note_and_the_kernels_stay(tmp_path: Path, ncu: Callable[..., Path]) -> None:
    calls = ncu(DENIED)
    outcome = whole(tmp_path)
    (note,) = notes(outcome)
    assert note.startswith("no counters: ncu says: ERR_NVGPUCTRPERM")
    assert len(calls.read_text("utf-8").splitlines()) == 1
    assert all(trace.kernels for trace in outcome.run.traces)


@dataclass
class Counting:
    """A counter of the made-up pack, with its variants."""

    counter: Counter
    variants: Sequence[Variant]

    def told(self, granted_s: float = 60.0) -> str:
        """Count all variants; return the note, which says why none has counters."""
        self.counter.left_s = granted_s
        for variant in self.variants:
            assert self.counter.counted(variant, Arm.B, [SCALE]) == (SCALE,)
        return self.counter.note(granted_s)


@pytest.fixture
def count(tmp_path: Path) -> Callable[[], Counting]:
    """Return what counts in this test's PATH."""
    asked = request(tmp_path, PACK)
    origins = {pack.name: pack.origin for pack in asked.packs}
    return lambda: Counting(Counter(Site(device="fake", origins=origins)), asked.variants)


def test_a_variant_that_hangs_under_ncu_is_ended(
    count: Callable[[], Counting], ncu: Callable[..., Path]
) -> None:
    ncu("", mode="hang")
    told = count().told(granted_s=0.5)
    assert "it took longer than its limit of 1 s" in told
    assert told.endswith("; 1 were left out: the limit is 0.5 s")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/nowhere/python\n", "No such file or directory"),
        ("#!/bin/sh\necho \"==ERROR== unrecognised option '--page'\"\nexit 1", "option '--page'"),
        ("#!/bin/sh\nexit 3", "ncu ended with exit code 3"),
        ("#!/bin/sh\n", "ncu counted no kernel"),
    ],
)
def test_an_ncu_that_cannot_count_is_a_note(
    tmp_path: Path, count: Callable[[], Counting], ncu: Callable[..., Path], script: str, said: str
) -> None:
    ncu("")
    (tmp_path / "bin" / "ncu").write_text(script, "utf-8")
    assert said in count().told()


def test_baselines_keep_counters_and_old_lines_stay_as_they_are(tmp_path: Path) -> None:
    accept(traced_run(), tmp_path, reason="first", by="Ann")
    path = tmp_path / SKU.slug / "memory.json"
    assert '"counters"' not in path.read_text("utf-8")
    assert entry_of(tmp_path).kernels == KERNELS
    more = tuple(replace(each, counters={"sectors_read": 12.0}) for each in KERNELS)
    again = replace(traced_run(more), id="20261122-103000-3f2a")
    done = accept(again, tmp_path, reason="counted", by="Ann")
    assert done.changed == {COPY: "counters recorded"}
    assert entry_of(tmp_path).kernels == more
    assert path.read_text("utf-8").count('"counters": {"sectors_read": 12}') == 2


def change(before_us: float, now_us: float) -> Change:
    return Change(
        metric="time_us",
        unit="us",
        baseline=before_us,
        current=now_us,
        theta=now_us / before_us - 1,
        low=0.0,
        high=0.0,
        threshold=0.0025,
        gate=0.01,
        detectable=0.001,
        time_change=math.log(now_us / before_us),
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [(1e6, 1.03e6, 1), (1e6, 1.01e6, 0), (10.0, 900.0, 0), (0.0, 5e6, 1)],
)
def test_counters_are_told_beyond_what_others_do(old: float, new: float, told: int) -> None:
    before = replace(SCALE, counters={"l2_sectors_read": old})
    now = replace(SCALE, duration_us=18.0, counters={"l2_sectors_read": new, "bank_conflicts": 9e9})
    said = headline(explain(change(9.0, 18.0), Side(kernels=(before,)), Side(kernels=(now,))))
    assert said.count("L2 sectors read") == told
    assert "bank conflicts" not in said  # of the other side they are not known


def test_the_kernel_table_has_counters_where_there_are_any() -> None:
    assert "Counted in one run of it" not in render_render(explained())
    page = render_render(explained(sectors=4_194_304))
    assert "Counted in one run of it" in page
    assert "sectors read 4.19\u202fM \u2192 8.39\u202fM; L2 sectors read 2.1" in page


def test_doctor_says_with_what_counters_are_read(
    tmp_path: Path, ncu: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(
        doctor, "inventory", lambda: (Gpu(index=0, uuid="GPU-0", name="NVIDIA H200"),)
    )
    driver, status = tmp_path / "params", tmp_path / "status"
    monkeypatch.setattr(counters, "_DRIVER", driver)
    monkeypatch.setattr(counters, "_STATUS", status)
    driver.write_text("RmProfilingAdminOnly: 1\n", "utf-8")
    status.write_text("CapEff:\t0000000000000000\n", "utf-8")
    ncu("")
    doctor.say_software()
    assert "the driver lets administrators alone read them" in capsys.readouterr().out
    status.write_text("CapEff:\t000001ffffffffff\n", "utf-8")
    doctor.say_software()
    assert f"by {tmp_path / 'bin' / 'ncu'}" in capsys.readouterr().out
    monkeypatch.setenv("PATH", str(tmp_path))
    doctor.say_software()
    assert "(ncu) is not on the PATH" in capsys.readouterr().out
