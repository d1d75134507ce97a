"""The perfsuite command, on stored runs and the scripted device."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from store_data import FACTS, SKU, finished, kept

from perfsuite.cli import judged_against, say_baselines
from perfsuite.model import Health, Trace, TracedKernel
from perfsuite.run.project import WIDE, say_table
from perfsuite.workers.units import _busy, _limited, lock

STEADY = Path(__file__).parent / "packs" / "steady.py"
PACK = ("--packs", str(STEADY))
A, B = "20261121-103000-3f2a", "20261122-103000-77aa"
C = "20261123-103000-77aa"

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two runs: softmax is 10 % slower in the second."""
    monkeypatch.setattr("perfsuite.packs.find.entry_points", lambda group: ())
    kept(project / ".perfsuite", finished({"copy": 300.0, "compute.softmax": 500.0}, run_id=A))
    kept(project / ".perfsuite", finished({"copy": 300.1, "compute.softmax": 550.0}, run_id=B))
    return project


def test_a_run_file_that_leads_elsewhere_or_is_none_is_named(
    perfsuite: Command, project: Path
) -> None:
    header, *rest = (project / ".perfsuite" / "runs" / f"{A}.jsonl").read_text("utf-8").split("\n")
    odd = json.dumps({**json.loads(header), "id": "../../../out"})
    (project / "odd.jsonl").write_text("\n".join([odd, *rest]), encoding="utf-8")
    before = set(project.parent.rglob("*"))
    for words in (["report"], ["merge"], ["history", "import"], ["baseline", "propose"],
                  ["compare", A], ["baseline", "accept", "--reason", "x"]):  # fmt: skip
        code, said = perfsuite(*words, "odd.jsonl")
        assert code != 0
        assert "run id '../../../out' cannot be a file name" in said
    assert {path.name for path in set(project.parent.rglob("*")) - before} <= {"history.db"}
    code, said = perfsuite("report", "x" * 5000)
    assert (code, "there is no such file: File name too long" in said) == (2, True)


def test_list_shows_variants_in_whole_and_counts_them(perfsuite: Command, project: Path) -> None:
    for text in ("pack=steady,n<=200", "steady and not 400"):
        code, said = perfsuite("list", *PACK, "--select", text)
        assert (code, "3 variants" in said, "steady.double[n=200]" in said) == (0, True, True)
    assert said.count("Double eight numbers") == 1
    kept(project / ".perfsuite", finished({"steady.double": 100.0}, run_id=C))
    perfsuite("baseline", "accept", C, "--reason", "x")
    path = project / "baselines" / "nvidia-h200" / "steady.json"
    version = '"case_version": 1'
    # Where the baseline has another version of the case, it is of other work.
    for old, new, share in (("1024", "200", "1 (33 %)"), (version, version[:-1] + "2", "0 (0.0")):
        path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
        code, said = perfsuite("list", *PACK, "--select", "n<=200", "--coverage")
        assert (code, share in said, "nvidia-h200" in said) == (0, True, True), said


def test_a_broken_pack_is_told_of_first_and_only_named_packs_are_listed(
    perfsuite: Command, project: Path
) -> None:
    (project / "bad.py").write_text("raise RuntimeError('bad')", encoding="utf-8")
    (project / "plugins/other").mkdir(parents=True)
    (project / "plugins/other/pyproject.toml").touch()
    # By a name of its own: the folder of the tests may have a comma in its path.
    shutil.copy(STEADY, project / "steady.py")
    both = ("list", "--packs", "bad.py", "--packs", "steady.py", "--select")
    code, said = perfsuite(*both, "steady")
    # What goes to stderr comes last here.
    assert (code, said.count("cannot be listed"), "steady.double" in said) == (1, 1, True), said
    assert said.index("cannot be listed") > said.index("steady.double"), said
    for words in ((*both, "bda"), ("list", "--pack", "bad.py"), ("list", "--packs=")):
        code, said = perfsuite(*words)
        told = ("RuntimeError: bad", ": --packs", "no pack is named")
        assert (code, any(each in said for each in told)) == (2, True), said


FORMS = ("memory.copy[n=1024]", "*.c?py*", "memory and not softmax", "case=copy,n>=1e3")


@pytest.mark.parametrize("text", FORMS)
def test_each_command_chooses_by_one_grammar(perfsuite: Command, text: str) -> None:
    perfsuite("history", "import", A, B)
    for words, told in (
        (("why",), "memory.copy[n=1024]"),
        (("history",), "no shift of 1 variant in 2 runs; a shift needs 3"),
        (("baseline", "reset", A, "--select"), "reference of 1 variant from"),
        (("baseline", "accept", A, "--reason", "x", "--select"), "1 added"),
        (("baseline", "show", "nvidia-h200"), "accepted 20"),
    ):
        code, said = perfsuite(*words, text)
        assert (code, told in said, "softmax" in said) == (0, True, False), said
        code, said = perfsuite(*words, "colour=red")
        assert (code, "no variant has the axis 'colour'" in said) == (2, True), said


@pytest.mark.parametrize("width", [100, 30, 0])
def test_a_table_fits_the_screen_and_is_not_padded(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, why = "memory.stream[op=copy,n=4194304]", "its code changed: " * 9
    screen = Console(width=width or WIDE)
    monkeypatch.setattr("perfsuite.run.project.console", lambda: screen)
    screen.file = sys.stdout
    say_table("Of two", ("variant", "tier", "why"), [(name, "smoke", why), ("a.b", "full", "")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert sum((name if width != 30 else "mem~04]") in line for line in lines) == 1
    assert any(why.strip() in line for line in lines) == (not width)
    assert len(lines) == 7
    if width:
        assert max(map(len, lines)) <= width
        assert "smoke   its cod" in " ".join(lines)


def test_run_checks_and_launches_and_under_a_profiler_it_only_launches(
    perfsuite: Command, project: Path
) -> None:
    (project / "profiler").write_text('#!/bin/sh\necho "hello $1"\nshift\nexec "$@"')
    (project / "profiler").chmod(0o755)
    own = ("run", "steady.double[n=100]", *PACK, "--device", "fake")
    code, said = perfsuite(*own)
    assert (code, "check ..." in said, "10 launches" in said) == (0, True, True), said
    code, said = perfsuite(*own, "--launches", "2", "--", "./profiler", "--set=full")
    assert (code, "hello --set=full" in said, "2 launches" in said) == (0, True, True), said
    assert "check" not in said


def test_a_launch_needs_its_device(perfsuite: Command, project: Path) -> None:
    text = STEADY.read_text("utf-8").replace("source=", "needs=[perfsuite.cuda()], source=")
    (project / "steady.py").write_text(text, encoding="utf-8")
    own = ("run", "steady.double[n=100]", "--packs", "./steady.py", "--device", "fake")
    code, said = perfsuite(*own)
    assert (code, "needs device cuda, this run uses fake" in said) == (2, True), said


def test_pairs_with_an_environment_are_held_against_no_baseline(
    perfsuite: Command, project: Path
) -> None:
    root = Path(__file__).parents[1]
    (packed,) = root.glob("docs/proof/planted/20261128-010601-*.gz")
    (project / "run.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    code, said = perfsuite("report", "run.jsonl", f"--baselines={root / 'baselines'}")
    page = (project / said.strip()).read_text("utf-8")
    held = "</code> against the same code in /tmp/clean, measured in this run</p>"
    assert (code, held in page, "git diff" in page) == (0, True, False)


def test_compare_judges_one_run_against_another(perfsuite: Command, project: Path) -> None:
    code, said = perfsuite("compare", A, B)
    table = said.partition("  verdict ")[2]
    lines = {line.split()[0]: line for line in table.splitlines() if "[n=1024]" in line}
    assert code == 1
    assert "compute.softmax[n=1024]: slower by 10" in said
    assert "compute.softmax[n=1024]" in lines["slower"]
    assert "10.0" in lines["slower"]
    assert ("same" in lines, " same" in said) == (False, True)
    assert "\n  same " in perfsuite("compare", A, B, "-v")[1]
    code, said = perfsuite("compare", A, B, "--html", "c.html", "--markdown", "c.md")
    assert "softmax" in Path("c.html").read_text("utf-8")
    assert "slower by 10" in Path("c.md").read_text("utf-8")
    assert perfsuite("compare", A)[0] == 2
    kept(project / ".perfsuite", finished({"copy": 300.0}, run_id="20261123"))
    assert "note: 1 variant not in this run, as comp" in perfsuite("compare", A, "20261123")[1]
    code, said = perfsuite("compare", A, B, A, "--html", "three.html")
    assert (code, "compute.softmax[n=1024]" in said) == (0, True)
    assert "side by side" in Path("three.html").read_text("utf-8")
    assert perfsuite("compare", A, B, A, "--markdown", "c.md")[0] == 2


def test_runs_of_two_products_stand_side_by_side(perfsuite: Command, project: Path) -> None:
    sku = replace(SKU, slug="nvidia-h100", facts={**SKU.facts, "pci": "10de:2330"})
    kept(project / ".perfsuite", replace(finished({"copy": 300.0}, run_id="20261123"), sku=sku))
    code, said = perfsuite("compare", A, "20261123")
    assert (code, "nvidia-h100   times faster" in said, "us    1.00x" in said) == (0, True, True)


def test_a_report_made_again_says_what_its_run_was_compared_with(
    perfsuite: Command, project: Path
) -> None:
    before, run = (finished({"softmax": us}, run_id=each) for us, each in ((500.0, A), (550.0, C)))
    # Of what was accepted since, its own kernels beside themselves are no cause of a change.
    kernels = (TracedKernel(name="softmax", count=1, duration_us=550.0),)
    traces = (Trace(variant="memory.softmax[n=1024]", kernels=kernels),)
    verdicts = judged_against(run, before).run.verdicts
    kept(project / ".perfsuite", run.having(verdicts=verdicts, traces=traces))
    assert perfsuite("baseline", "accept", C, "--reason", "meanwhile")[0] == 0
    assert "note: baselines were accepted since" in perfsuite("report", C)[1]
    said = (project / "reports" / C / "summary.md").read_text("utf-8")
    assert (f"compared with run {A}" in said, "outside kernels" in said) == (True, False)


LAUNCH = ("run", *PACK, "steady.double[n=100]")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("run", *PACK, "steady.double[n=7]"), "no variant of"),
        (("run", *PACK, "steady.double"), "is not one variant"),
        (("run", *PACK, "n>1"), "is not one variant"),
        (("run", *PACK, "other.double[n=100]"), "no variant of"),
        ((*LAUNCH, "--device", "abacus"), "unknown device 'abacus'"),
        ((*LAUNCH, "--device", "fake", "--", "./no-profiler"), "no-profiler"),
        (("run", "--packs=bad.py", "bad.x[n=1]"), "RuntimeError: boom"),
        (("report", "20270101-000000-0000"), "20270101-000000-0000"),
        (("report", "x/y"), "x/y"),
        (("baseline", "accept", A, "--reason", " "), "without 'reason'"),
        (("baseline", "accept", A, "--reason", "x", "--select", "gemm"), "'gemm'"),
        (("baseline", "accept", A, "--reason", "x", "--select", ""), "the selection is empty"),
        (("baseline", "accept", A), "--reason"),
        (("baseline", "show", "nvidia-b200"), "no baseline for the SKU 'nvidia-b200'"),
        (("baseline", "lint", "--baselines", "basslines"), "there is no such folder of baselines"),
    ],
)
def test_what_cannot_be_done_is_refused(
    perfsuite: Command, project: Path, args: tuple[str, ...], problem: str
) -> None:
    (project / "bad.py").write_text("raise RuntimeError('boom')")
    code, said = perfsuite(*args)
    assert (code, problem in said) == (2, True)
    (project / ".perfsuite").rename(project / "gone")  # without any run the way to one is named
    code, said = perfsuite("report")
    assert (code, "pytest --perf" in said) == (2, True)


def test_doctor_says_what_this_is_and_what_it_skips(
    perfsuite: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "load").write_text("0.1 0.1 0.1 100/200 4", "ascii")
    monkeypatch.setattr("perfsuite.workers.units.LOAD", project / "load")
    text = STEADY.read_text("utf-8").replace("source=", "needs=[perfsuite.cuda()], source=", 1)
    (project / "steady.py").write_text(text, encoding="utf-8")
    (project / "bad.py").write_text("raise RuntimeError('boom')", encoding="utf-8")
    code, said = perfsuite("doctor", "--device", "fake", "--packs", "steady.py,bad.py")
    assert code == 0, said
    assert "Fake Device" in said
    assert "Baselines: none for fake" in said
    assert "needs device cuda, this run uses fake" in said
    assert "Pack bad cannot be listed" in said
    assert "other work has busy threads (99 on " in said


def test_doctor_says_what_a_run_is_compared_with(
    perfsuite: Command, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    perfsuite("baseline", "accept", A, "--reason", "first light")
    roots = [project / "baselines"]
    say_baselines(FACTS, roots)
    assert "2 variants of nvidia-h200" in capfd.readouterr().out
    say_baselines(replace(FACTS, identity={**FACTS.identity, "sms": "78"}), roots)
    assert "another product" in capfd.readouterr().out


def test_a_strict_doctor_refuses_other_work_but_not_how_the_machine_is_set_up(
    perfsuite: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    governor = tmp_path / "governor"
    governor.write_text("powersave\n", encoding="ascii")
    monkeypatch.setattr("perfsuite.workers.units.GOVERNOR", governor)
    monkeypatch.setattr("perfsuite.workers.units.LOAD", tmp_path / "load")
    for running, expected in (("99/200", 20), ("1/200", 0)):  # what ran a minute ago counts not
        (tmp_path / "load").write_text(f"9.9 9.9 9.9 {running} 4", "ascii")
        code, said = perfsuite("doctor", "--device", "fake", "--strict")
        assert code == expected, said
        assert "governor 'powersave'" in said
    with lock("fa4e00000000"):  # it answers while a run has the device
        code, said = perfsuite("doctor", "--device", "fake", "--strict")
    assert code == 20
    assert f"by process {os.getpid()} (" in said


def test_doctor_reads_a_gpu_s_health() -> None:
    hot = Health(temperature_c=91.0, reasons=("hw_thermal", "sw_power_cap"))
    assert [text.split()[0] for text in _busy(hot, 40.0)] == ["40", "91", "slowed"]
    assert list(_busy(Health(), 0.0)) == []
    default = {"default_power_limit_w": "700"}
    assert "500 W" in next(_limited(default, {"enforced_power_limit_w": "500"}))
    assert list(_limited(default, {"enforced_power_limit_w": "700"})) == []


def test_the_stored_runs_are_listed_and_tell_why(
    perfsuite: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert perfsuite("--version")[1].startswith("perfsuite 0.")
    (project / ".perfsuite" / "runs" / "29990101-000000.jsonl").touch()
    said = perfsuite("runs")[1]
    assert 0 < said.index("damaged") < said.index(B) < said.index(A)
    (project / ".perfsuite" / "runs" / "29990101-000000.jsonl").unlink()
    (project / ".perfsuite" / "history.db").write_text("no database" * 100, encoding="utf-8")
    code, said = perfsuite("why", "*softmax*")
    assert "note: the history is not shown: the history refuses" in said
    assert (code, "compute.softmax" in said, "copy" in said) == (0, True, False)
    assert perfsuite("why", "nothing")[0] == 2
    assert perfsuite("open")[0] == 2
    assert perfsuite("report")[0] == 0
    assert perfsuite("open")[0] == 0
    assert opened == [(project / "reports" / B / "index.html").as_uri()]
