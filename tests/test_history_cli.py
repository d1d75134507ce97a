"""The commands about the history, on made-up nights."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from history_data import COPY, night, nights
from msgspec import structs

from perfsuite.cli import main
from perfsuite.history import DEFAULT
from perfsuite.history.pages import _sparkline
from perfsuite.history.store import History, recent, stored_of, url_of
from perfsuite.model import Arm, BaselineMove, Run, SeriesKey
from perfsuite.store.runs import RunFile

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder whose history has forty nights, 3 % slower from the 25th."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFSUITE_HISTORY", raising=False)
    with History(DEFAULT, tmp_path) as history:
        for run in nights(40, step=0.03, at=25):
            history.add(stored_of(run))
    return tmp_path


@pytest.fixture
def perfsuite(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Run a command of the history in the project; return its exit code and all it said."""
    assert Path.cwd() == project

    def call(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["perfsuite", "history", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capfd.readouterr()
        return int(caught.value.code or 0), said.out + said.err

    return call


def test_a_terminal_without_utf_8_is_no_error(
    perfsuite: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding="ascii"))
    code, _ = perfsuite(COPY)
    sys.stdout.flush()
    assert code == 0
    assert b"of 30 runs" in said.getvalue()


def write(folder: Path, run: Run) -> Path:
    with RunFile.create(folder, run) as file:
        for result in run.results:
            file.append(result)
        file.finish(run)
        return file.path


def test_a_variant_s_history_says_since_when_and_by_how_much(perfsuite: Command) -> None:
    code, said = perfsuite(COPY)
    assert code == 0
    assert f"{COPY}: time_us on nvidia-h200 (paced)" in said
    assert "of 30 runs" in said
    assert "night-0010" in said
    assert "night-0009" not in said
    assert "since 2026-01-26 02:00 UTC: +2.97 % (300.0 us to 308.9 us" in said
    assert f"{24:012x}..{25:012x}" in said
    assert "also known, with --metric: cycles, peak_bytes" in said


def test_a_run_of_two_arms_is_one_run(perfsuite: Command, project: Path) -> None:
    both = night(40)
    both = structs.replace(
        both, aside=tuple(structs.replace(one, arm=Arm.A) for one in both.results)
    )
    with History(DEFAULT, project) as history:
        history.add(stored_of(both))
    _, said = perfsuite("--last", "2", COPY)
    assert "left out: arm A" in said
    assert "of 1 run\n" in said


def test_options_may_stand_first_and_choose(perfsuite: Command) -> None:
    code, said = perfsuite("--last", "3", "--metric", "peak_bytes", COPY)
    assert code == 0
    assert "of 3 runs" in said
    assert "134 MB" in said


def test_programs_get_all_that_is_known(perfsuite: Command) -> None:
    code, said = perfsuite(COPY, "--metric", "time_us", "--json")
    assert code == 0
    (series,) = json.loads(said)
    assert len(series["points"]) == 40
    assert series["change_points"][0]["run"] == "night-0025"


def test_an_unknown_variant_is_an_error_that_names_others(perfsuite: Command) -> None:
    code, said = perfsuite("memory.copy[n=9]")
    assert code == 2
    assert COPY in said
    assert "Traceback" not in said


def test_runs_are_imported_once_and_what_is_damaged_is_refused(
    perfsuite: Command, project: Path
) -> None:
    path = write(project / ".perfsuite", night(50))
    damaged = project / "damaged.jsonl"
    damaged.write_text("{", encoding="utf-8")
    code, said = perfsuite("import", str(path), "night-0050", str(damaged))
    assert code == 1
    assert f"{path}: stored" in said
    assert "night-0050: was there already" in said
    assert f"{damaged}: not stored: " in said


def test_a_run_that_fails_unforeseen_costs_no_file_behind_it(
    perfsuite: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Run) -> object:
        if run.id == paths[0].stem:
            raise KeyError("zz")
        return stored_of(run)

    paths = [write(project / ".perfsuite", night(number)) for number in (50, 51)]
    monkeypatch.setattr("perfsuite.history.store.stored_of", fails)
    code, said = perfsuite("import", *map(str, paths))
    assert code == 1
    assert f"{paths[0]}: not stored: KeyError: 'zz'" in said
    assert f"{paths[1]}: stored" in said
    assert "Traceback" not in said


def test_samples_are_pruned_by_age(perfsuite: Command) -> None:
    assert perfsuite("prune", "--keep-samples", "1d") == (0, "dropped the samples of 80 points\n")
    for days in ("soon", "1000000d", "99999999999d"):
        code, said = perfsuite("prune", "--keep-samples", days)
        assert code == 2
        assert "write 90d" in said


def test_trend_pages_are_written_per_sku(perfsuite: Command, project: Path) -> None:
    assert perfsuite("trends") == (0, "wrote reports/trends-nvidia-h200.html\n")
    assert (project / "reports" / "trends-nvidia-h200.html").is_file()
    code, said = perfsuite("trends", "--sku", "nvidia-b300")
    assert code == 2
    assert "nvidia-h200" in said


@pytest.mark.parametrize(
    ("file", "content", "url"),
    [
        ("pyproject.toml", '[tool.pytest.ini_options]\nperf_history = "sqlite:///a.db"', "a.db"),
        ("pyproject.toml", "[tool.pytest.ini_options]\n", "history.db"),
        ("README", "", "history.db"),
    ],
)
def test_the_history_is_where_the_project_s_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, url: str
) -> None:
    monkeypatch.delenv("PERFSUITE_HISTORY", raising=False)
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert url_of(tmp_path).endswith(url)
    monkeypatch.setenv("PERFSUITE_HISTORY", "postgresql://x/y")
    assert url_of(tmp_path) == "postgresql://x/y"


def test_a_project_without_a_history_says_so(perfsuite: Command, project: Path) -> None:
    text = "[tool.pytest.ini_options]\nperf_history = ''\n"
    (project / "pyproject.toml").write_text(text, encoding="utf-8")
    code, said = perfsuite("trends")
    assert code == 2
    assert "keeps no history" in said


@pytest.mark.parametrize("args", [(COPY,), ("trends",), ("import", "x")])
def test_without_sqlalchemy_a_command_says_what_to_install(
    perfsuite: Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    for name in [name for name in sys.modules if name.startswith("perfsuite.history")]:
        monkeypatch.delitem(sys.modules, name)
    code, said = perfsuite(*args)
    assert code == 2
    assert "pip install sqlalchemy" in said


def test_a_report_shows_the_past_and_does_without(
    perfsuite: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / ".perfsuite", night(39))
    monkeypatch.setattr(sys, "argv", ["perfsuite", "report"])
    page = project / "reports" / "night-0039" / "index.html"
    for url, has_past in ((DEFAULT, True), ("sqlite:///none.db", False), ("nonsense", False)):
        monkeypatch.setenv("PERFSUITE_HISTORY", url)
        with pytest.raises(SystemExit):
            main()
        assert ("<h3>History" in page.read_text(encoding="utf-8")) is has_past


def test_a_sparkline_spans_its_values() -> None:
    assert _sparkline([1.0, 2.0, None, 3.0]) == "▁▅█"
    assert _sparkline([2.0, 2.0]) == "▄▄"
    assert _sparkline([]) == ""


def damage(project: Path, table: str, column: str, value: str, where: str = "1") -> None:
    """Let another program write to the history."""
    statement = f"UPDATE {table} SET {column} = {value} WHERE {where}"  # noqa: S608 - made up
    with sqlite3.connect(project / ".perfsuite" / "history.db") as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("center", value) for value in ("'x'", "9e999", "1e200", "x'00'")),
        *(("process_values", value) for value in ("5", "'['", "x'00'")),
        *(("word", "x'ff'"), ("why_not", "x'ff'"), ("theta", "x'ff'")),
        ("between_processes", "'x'"),
        *(("started", value) for value in ("x'00'", "'0001-01-01T00:00:00+23:00'")),
        ("commit_id", "x'00'"),
    ],
)
def test_a_damaged_row_costs_that_row(
    project: Path, perfsuite: Command, column: str, value: str
) -> None:
    of_run = column in {"started", "commit_id"}
    one = "series = (SELECT number FROM series WHERE metric = 'time_us') AND run = 1"
    damage(
        project,
        *(("runs", column, value, "number = 1") if of_run else ("points", column, value, one)),
    )
    for args in ((COPY, "--last=99"), (COPY, "--json"), ("trends",)):
        code, said = perfsuite(*args)
        assert code == 0
        assert "Traceback" not in said
        if args[0] == COPY:
            assert "damaged row" in said
            assert "night-0001" in said
    with History(DEFAULT, project) as history:
        found = recent(history, night(39), {COPY})[COPY]
    assert len(found.points) == 39


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("sku", "x'ff'"), ("variant", "x'00'"), ("variant", "cast(x'ff41' AS TEXT)")),
        ("case_version", "'x'"),
    ],
)
def test_a_damaged_series_costs_that_series(
    project: Path, perfsuite: Command, column: str, value: str
) -> None:
    damage(project, "series", column, value, "metric = 'time_us'")
    assert perfsuite("trends")[0] == 0
    code, said = perfsuite(COPY, "--metric=cycles", "--last=99")
    assert (code, "night-0001" in said) == (0, True)
    with History(DEFAULT, project) as history:
        assert history.add(stored_of(night(41)))


@pytest.mark.parametrize("version", ["'x'", "0", "-1", "x'00'", "1.5"])
def test_a_version_that_is_none_is_refused(project: Path, perfsuite: Command, version: str) -> None:
    damage(project, "perfsuite_schema", "version", version)
    code, said = perfsuite(COPY)
    assert code == 2
    assert "this perfsuite reads" in said


def test_half_a_character_is_stored_as_a_mark(project: Path) -> None:
    move = BaselineMove(
        key=SeriesKey(sku="s\ud800", variant=COPY, metric="time_us", regime="paced"),
        run="night-0001",
        accepted="2026-01-02T12:00:00",
        by="me\ud800",
        reason="\ud800",
        center=1.0,
    )
    with History(DEFAULT, project) as history:
        history.add_moves([move])
        history.add_moves([move])
        assert history.add(replace(stored_of(night(50)), environment={"a\ud800": "\ud800"}))
