"""What Nsight Compute counts: asked for, read, joined to traced kernels, stored and compared.

No recorded log is at hand: those here are written by hand, in the form that Nsight Compute's
documentation and others' parsers give for ``--csv --page raw``.
"""

from __future__ import annotations

import gzip
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import test_runner as runner
from msgspec.structs import replace
from report_data import explained as explained_run
from test_runner import Log, request, slow_down

from perfsuite.boundary import DeviceError
from perfsuite.explain import trace as counters
from perfsuite.explain.trace import METRICS, counted, joined, read
from perfsuite.explain.why import explain
from perfsuite.model import Trace, TracedKernel
from perfsuite.report.data import SideView
from perfsuite.report.data import read as read_run
from perfsuite.report.files import render_page
from perfsuite.run.accept import accept
from perfsuite.run.run import Outcome, entries_in, execute
from perfsuite.store.runs import load_run
from perfsuite.workers.process import Code, Setup

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


def test_kernels_are_read_with_their_shape_and_what_the_chip_counts() -> None:
    first, second = read(log(("scale_rows", 4_194_304), ("void add<4>(float *)", 0)))
    assert (first.name, first.grid, first.block) == ("scale_rows", GRID, BLOCK)
    assert first.counters == dict.fromkeys(METRICS, 4_194_304.0)
    assert second.name == "void add<4>(float *)"
    assert set(second.counters.values()) == {0.0}
    assert [read(log(("f", said)))[0].counters for said in ("n/a", "nan", "inf")] == [{}] * 3
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


ANONYMOUS = "void (anonymous namespace)::a::add<4>(float*, unsigned long)"
INT, FLOAT = (replace(SCALE, name=f"void f<{kind}>({kind}*)") for kind in ("int", "float"))


@pytest.mark.parametrize(
    ("kernels", "rows", "sectors"),
    [
        # Demanglers agree on functions and shapes.
        (
            [replace(SCALE, name=ANONYMOUS)],
            [("void <unnamed>::a::add<4>(float *, unsigned long)", 5)],
            [5],
        ),
        ([replace(SCALE, name=ANONYMOUS, grid=(8, 1, 1))], [("add", 5)], [None]),
        # A kernel that runs often has the counters of one run.
        ([replace(SCALE, count=2)], [("scale_rows", 10), ("scale_rows", 20)], [15]),
        # Kernels of one template are told apart by whole name, or not at all.
        ([INT, FLOAT], [("void f<float>(float *)", 8), ("void f<int>(int *)", 4)], [4, 8]),
        ([SCALE, replace(SCALE, registers=64)], [("scale_rows", n) for n in (5, 7)], [None, None]),
        ([TracedKernel(name="Memset", count=1, duration_us=1.0)], [("scale_rows", 5)], [None]),
    ],
)
def test_counters_are_those_of_one_run_of_a_kernel(
    kernels: list[TracedKernel], rows: list[tuple[str, float]], sectors: list[float | None]
) -> None:
    found = joined(
        kernels, [replace(SCALE, name=name, counters={"sectors_read": n}) for name, n in rows]
    )
    assert [each.counters.get("sectors_read") for each in found] == sectors


UNDER = """
        import os, time
        if os.environ.get("UNDER_NCU") == "crash":
            raise ValueError("not under ncu")
        if os.environ.get("UNDER_NCU") == "hang":
            time.sleep(60)
"""
KERNEL = f'run_kernel("scale_rows", us * factor, f"mov %r{{factor}};", grid={GRID}, block={BLOCK})'
PACK = runner.PACK.replace("[100, 200]", "[100]").replace("spend(us * factor)", KERNEL)
PACK = PACK.replace("        factor = json", f"{UNDER}        factor = json")
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


def whole(tmp_path: Path) -> Outcome:
    return execute(request(tmp_path, PACK, counters=True), Log())


def test_a_run_counts_what_it_traces_and_says_what_was_counted_otherwise(
    tmp_path: Path, ncu: Callable[..., Path]
) -> None:
    calls = ncu(log(("scale_rows", 4_194_304)))
    outcome = whole(tmp_path)
    found = [kernel.counters for trace in outcome.run.traces for kernel in trace.kernels]
    assert found == [dict.fromkeys(METRICS, 4_194_304)]
    assert load_run(outcome.run_file) == outcome.run
    (words,) = calls.read_text("utf-8").splitlines()
    assert "--clock-control none" in words
    accept(outcome.run, tmp_path / "baselines", reason="first", by="Ann")
    assert whole(tmp_path).run.traces == ()
    ncu(log(("scale_rows", 8_388_608)))
    slow_down(tmp_path, 100, by=2)
    now = whole(tmp_path)
    run_view = read_run(now.run, baselines=entries_in(now.run))
    page = render_page(run_view)
    assert ("-mov %r1;" in page, "+mov %r2;" in page) == (True, True)
    ((code,),) = (trace.codes for trace in now.run.traces)
    kept = now.run_file.parents[1] / "artefacts" / f"{code.ptx}.ptx.gz"
    assert gzip.decompress(kept.read_bytes()) == b"mov %r2;"
    assert "sectors read 4.19\u202fM \u2192 8.39\u202fM, " in run_view.variants[0].explanation.text


Counts = Callable[[float], str]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """Count what a variant was traced to be, twice; return the note."""
    asked = request(tmp_path_factory.mktemp("asked"), PACK)
    setup = Setup(device="fake", own=Code.of(asked.packs))
    (variant,) = asked.variants
    traces = [Trace(variant=variant.id, kernels=(SCALE,))] * 2

    def count(limit_s: float) -> str:
        found: list[Trace] = []
        note = counted(setup, {variant.id: variant}, traces, limit_s, found.append)
        assert found == traces
        return note

    return count


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/nowhere/python\n", "No such file or directory"),
        ("#!/bin/sh\necho \"==ERROR== unrecognised option '--page'\"\nexit 1", "option '--page'"),
        ("#!/bin/sh\nexit 3", "ncu ended with exit code 3"),
        ("#!/bin/sh\nsleep 60 &\n", "ncu counted no kernel"),
        ("crash", "1 could not be counted (first acme.double[us=100]: ValueError: not under ncu)"),
        ("hang", "than its limit of 1 s); 1 were left out: the limit is 0.5 s"),
    ],
)
def test_an_ncu_that_cannot_count_is_a_note_and_the_kernels_stay(
    tmp_path: Path, ncu: Callable[..., Path], counts: Counts, script: str, said: str
) -> None:
    ncu("", mode=script)
    if script.startswith("#!"):
        (tmp_path / "bin" / "ncu").write_text(script, "utf-8")
    assert said in counts(0.5 if script == "hang" else 60.0)


def test_who_may_not_count_or_has_no_ncu_is_told_once(
    tmp_path: Path, ncu: Callable[..., Path], counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ncu(DENIED)
    assert counts(60.0).startswith("no counters: ncu says: ERR_NVGPUCTRPERM")
    assert len(calls.read_text("utf-8").splitlines()) == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    assert counts(60.0) == "no counters: NVIDIA's Nsight Compute (ncu) is not on the PATH"


def test_counters_are_told_beyond_what_others_do_and_stand_in_the_table() -> None:
    for old, new, told in ((1e6, 1.03e6, 1), (1e6, 1.01e6, 0), (10.0, 900.0, 0), (0.0, 5e6, 1)):
        before = replace(SCALE, counters={"l2_sectors_read": old})
        # Of the other side bank conflicts are not known.
        counts = {"l2_sectors_read": new, "bank_conflicts": 9e9}
        now = replace(SCALE, duration_us=18.0, counters=counts)
        (found,) = explain(None, SideView(kernels=(before,)), SideView(kernels=(now,))).kernels
        assert [name for name, _, _ in found.counters] == ["l2_sectors_read"] * told
    assert "Counted in one run of it" not in render_page(explained_run())
    page = render_page(explained_run(sectors=4_194_304))
    assert "Counted in one run of it" in page
    assert "sectors read 4.19\u202fM \u2192 8.39\u202fM; L2 sectors read 2.1" in page


def test_doctor_says_with_what_counters_are_read(
    tmp_path: Path, ncu: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, status = tmp_path / "params", tmp_path / "status"
    monkeypatch.setattr(counters, "_DRIVER", driver)
    monkeypatch.setattr(counters, "_STATUS", status)
    driver.write_text("RmProfilingAdminOnly: 1\n", "utf-8")
    ncu("")
    for capabilities, said in (("0" * 16, "the driver lets"), ("000001ffffffffff", "by /")):
        status.write_text(f"CapEff:\t{capabilities}\n", "utf-8")
        assert said in next(counters.readers())
