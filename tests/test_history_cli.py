"""The commands about the history, on made-up nights."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from history_data import COPY, night, nights
from msgspec.structs import replace

from perfsuite.cli import main
from perfsuite.history import DEFAULT
from perfsuite.history.store import History, recent, stored_of, url_of
from perfsuite.model import Arm, BaselineMove, Run, SeriesKey
from perfsuite.store.runs import RunFile

Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of forty nights, 3 % slower from the 25th."""
    folder = tmp_path_factory.mktemp("made")
    with History(DEFAULT, folder) as history:
        for run in nights(40, step=0.03, at=25):
            history.add(stored_of(run))
    return folder / ".perfsuite"


@pytest.fixture
def project(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder with a history of its own."""
    (tmp_path / "pyproject.toml").touch()
    shutil.copytree(made, tmp_path / ".perfsuite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFSUITE_HISTORY", raising=False)
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
        assert "Traceback" not in said.out + said.err
        return int(caught.value.code or 0), said.out + said.err

    return call


def write(folder: Path, run: Run) -> Path:
    with RunFile.create(folder, run) as file:
        for result in run.results:
            file.append(result)
        file.finish(run)
        return file.path


KNOWN = "known are " + COPY


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (
            (COPY,),
            0,
            (
                f"{COPY}: time_us on nvidia-h200 (paced)",
                "▁",
                "of 30 runs",
                "night-0010",
                "since 2026-01-26 02:00 UTC: +2.97 % (300.0 us to 308.9 us",
                f"{24:012x}..{25:012x}",
                "also known, with --metric: cycles, peak_bytes",
            ),
        ),
        (("--last", "3", "--metric", "peak_bytes", COPY), 0, ("of 3 runs", "134 MB")),
        (("memory.copy[n=9]",), 2, (KNOWN,)),
        (("prune", "--keep-samples", "1d"), 0, ("dropped the samples of 80 points\n",)),
        *(
            (("prune", "--keep-samples", days), 2, ("write 90d",))
            for days in ("soon", "1000000d", "99999999999d")
        ),
        (("trends",), 0, ("wrote reports/trends-nvidia-h200.html\n",)),
        (("trends", "--sku", "nvidia-b300"), 2, ("known are nvidia-h200",)),
    ],
)
def test_commands_say_what_is_known(
    perfsuite: Command, args: tuple[str, ...], code: int, told: tuple[str, ...]
) -> None:
    found, said = perfsuite(*args)
    assert found == code
    assert not [each for each in told if each not in said]
    assert "night-0009" not in said


def test_a_terminal_without_utf_8_is_no_error(
    perfsuite: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding="ascii"))
    assert perfsuite(COPY)[0] == 0
    sys.stdout.flush()
    assert b"of 30 runs" in said.getvalue()


def test_a_run_of_two_arms_is_one_run(perfsuite: Command, project: Path) -> None:
    both = night(40)
    both = both.having(
        results=(*both.results, *tuple(replace(one, arm=Arm.A) for one in both.results))
    )
    with History(DEFAULT, project) as history:
        history.add(stored_of(both))
    _, said = perfsuite("--last", "2", COPY)
    assert "left out: arm A" in said
    assert "of 1 run\n" in said


def test_programs_get_all_that_is_known(perfsuite: Command) -> None:
    code, said = perfsuite(COPY, "--metric", "time_us", "--json")
    (series,) = json.loads(said)
    assert (code, len(series["points"])) == (0, 40)
    assert series["change_points"][0]["run"] == "night-0025"


def test_runs_are_imported_once_and_what_is_damaged_costs_no_file_behind_it(
    perfsuite: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Run) -> object:
        if run.id == odd.stem:
            raise KeyError("zz")
        return stored_of(run)

    monkeypatch.setattr("perfsuite.history.store.stored_of", fails)
    odd, path = (write(project / ".perfsuite", night(number)) for number in (51, 50))
    damaged = project / "damaged.jsonl"
    damaged.write_text("{", encoding="utf-8")
    code, said = perfsuite("import", str(odd), str(damaged), str(path), "night-0050")
    assert code == 1
    assert f"{odd}: not stored: KeyError: 'zz'" in said
    assert f"{damaged}: not stored: " in said
    assert f"{path}: stored" in said
    assert "night-0050: was there already" in said


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ('[tool.pytest.ini_options]\nperf_history = "sqlite:///a.db"', "a.db"),
        ("[tool.pytest.ini_options]\n", "history.db"),
    ],
)
def test_the_history_is_where_the_project_s_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, url: str
) -> None:
    monkeypatch.delenv("PERFSUITE_HISTORY", raising=False)
    assert url_of(tmp_path).endswith("history.db")
    (tmp_path / "pyproject.toml").write_text(content, encoding="utf-8")
    assert url_of(tmp_path).endswith(url)
    monkeypatch.setenv("PERFSUITE_HISTORY", "postgresql://x/y")
    assert url_of(tmp_path) == "postgresql://x/y"


def test_a_project_without_a_history_says_so(perfsuite: Command, project: Path) -> None:
    text = "[tool.pytest.ini_options]\nperf_history = ''\n"
    (project / "pyproject.toml").write_text(text, encoding="utf-8")
    code, said = perfsuite("trends")
    assert (code, "keeps no history" in said) == (2, True)


@pytest.mark.parametrize("args", [(COPY,), ("trends",), ("import", "x")])
def test_without_sqlalchemy_a_command_says_what_to_install(
    perfsuite: Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "perfsuite.history.store")
    code, said = perfsuite(*args)
    assert (code, "pip install sqlalchemy" in said) == (2, True)


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
        *(("process_values", value) for value in ("5", "'['", "x'00'", """'{"u":[1e200]}'""")),
        *((name, "x'ff'") for name in ("word", "why_not", "theta", "sku", "metric")),
        *((name, "'x'") for name in ("between_processes", "case_version")),
        *(("started", value) for value in ("x'00'", "'0001-01-01T00:00:00+23:00'")),
        ("commit_id", "x'00'"),
    ],
)
def test_a_damaged_row_costs_that_row(
    project: Path, perfsuite: Command, column: str, value: str
) -> None:
    of_run = column in {"started", "commit_id"}
    where = "number = 1" if of_run else "metric = 'time_us' AND run = 1"
    damage(project, "runs" if of_run else "points", column, value, where)
    for args in ((COPY, "--last=99"), (COPY, "--json"), ("trends",)):
        code, said = perfsuite(*args)
        assert code == 0
        if args[0] == COPY:
            assert "damaged row" in said
            assert "night-0001" in said
    with History(DEFAULT, project) as history:
        assert len(recent(history, night(39), {COPY})[COPY].points) == 39
        assert history.add(stored_of(night(41)))


@pytest.mark.parametrize("version", ["'x'", "0", "-1", "x'00'", "1.5"])
def test_a_version_that_is_none_is_refused(project: Path, perfsuite: Command, version: str) -> None:
    damage(project, "perfsuite_schema", "version", version)
    code, said = perfsuite(COPY)
    assert (code, "this perfsuite reads" in said) == (2, True)


def test_half_a_character_is_stored_as_a_mark(project: Path) -> None:
    key = SeriesKey(sku="s\ud800", variant=COPY, metric="time_us", regime="paced")
    told = {"accepted": "2026-01-02T12:00:00", "by": "me\ud800", "reason": "\ud800"}
    move = BaselineMove(key=key, run="night-0001", center=1.0, **told)
    odd = night(50)
    odd = replace(odd, facts=replace(odd.facts, environment={"a\ud800": "\ud800"}))
    with History(DEFAULT, project) as history:
        history.add_moves([move])
        history.add_moves([move])
        assert history.add(stored_of(odd))
