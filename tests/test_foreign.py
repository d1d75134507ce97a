"""pytest-benchmark's files in the history: old series with change points, of a SKU of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from history_data import commit_of, night
from report_data import STORY, run_of

from perfsuite.cli import main
from perfsuite.errors import StoreError
from perfsuite.history import History, series_of, stored_of
from perfsuite.history.address import DEFAULT
from perfsuite.history.foreign import read_benchmark
from perfsuite.history.rows import unpack_samples
from perfsuite.report.benchmark import benchmark_json
from perfsuite.report.book import read
from perfsuite.sku import slugify

Command = Callable[..., tuple[int, str]]
NAME = "tests/test_it.py::test_it[1]"
FIRST = datetime(2025, 1, 1, 3, tzinfo=UTC)


def content(index: int = 0, seconds: float = 3e-6, **more: Any) -> dict[str, Any]:
    """Return what pytest-benchmark 5.3.1 writes, less what nobody reads."""
    data = [seconds, 1.01 * seconds, 0.99 * seconds]
    return {
        "machine_info": {
            "node": "builder",
            "processor": "",
            "machine": "x86_64",
            "python_build": ["main", "May  9 2026"],
            "python_version": "3.11.7",
            "cpu": {"brand_raw": "AMD EPYC", "hz_actual": [2_596_128_000, 0]},
        },
        "commit_info": {"id": commit_of(index), "dirty": index == 1, "branch": "main"},
        "benchmarks": [
            {
                "group": None,
                "name": "test_it[1]",
                "fullname": NAME,
                "params": {"n": 1},
                "stats": {"median": seconds, "mean": seconds, "data": data, "outliers": "1;0"},
            }
        ],
        "datetime": (FIRST + timedelta(days=index)).isoformat(),
        "version": "5.3.1",
        **more,
    }


def write(folder: Path, told: Mapping[str, Any] | str, name: str = "0001_x.json") -> Path:
    path = folder / name
    path.write_text(told if isinstance(told, str) else json.dumps(told), encoding="utf-8")
    return path


def test_seconds_become_microseconds_and_the_machine_a_foreign_sku(tmp_path: Path) -> None:
    run = read_benchmark(write(tmp_path, content(1)))
    assert (run.started, run.commit) == ("2025-01-02T03:00:00+00:00", f"{commit_of(1)}-dirty")
    assert (run.sku, run.unit) == ("pytest-benchmark_amd-epyc", "builder")
    assert run.environment["python_version"] == "3.11.7"
    (stored,) = run.points
    assert (stored.key.variant, stored.key.metric, stored.key.unit) == (NAME, "time_us", "us")
    assert stored.point.center == pytest.approx(3.0)
    assert stored.samples is not None
    assert unpack_samples(stored.samples) == [[pytest.approx([3.0, 3.03, 2.97])]]


def test_no_device_measured_here_has_such_a_sku_or_regime(tmp_path: Path) -> None:
    run = read_benchmark(write(tmp_path, content()))
    assert slugify(run.sku) != run.sku
    own = stored_of(night(0)).points
    assert run.points[0].key.regime not in {each.key.regime for each in own}


@pytest.mark.parametrize(
    ("machine", "sku"),
    [
        ({"cpu": {"brand": "Intel(R) Xeon(R)"}}, "intel-xeon"),
        ({"cpu": "?", "processor": "arm"}, "arm"),
        ({"cpu": {}, "machine": "x86_64"}, "x86-64"),
        ({}, "unknown"),
    ],
)
def test_older_files_name_their_machine_otherwise(
    tmp_path: Path, machine: dict[str, Any], sku: str
) -> None:
    old = content(machine_info=machine, commit_info={}, datetime="2015-08-11T01:47:28.123")
    del old["benchmarks"][0]["stats"]["data"]
    run = read_benchmark(write(tmp_path, old))
    assert run.sku == f"pytest-benchmark_{sku}"
    assert (run.started, run.commit) == ("2015-08-11T01:47:28+00:00", "")
    assert run.points[0].samples is None


BAD: Mapping[str, tuple[dict[str, Any] | str, str]] = {
    "no JSON": ("{", "not valid JSON"),
    "a list": ("[]", "Expected `object`"),
    "other JSON": ({"datetime": "2025-01-01T00:00:00"}, "benchmarks"),
    "no benchmark": (content(benchmarks=[]), "it holds no benchmark"),
    "no time": (content(seconds=0.0), "has a duration that is none"),
    "text": (content(benchmarks=[{"fullname": "x", "stats": {"median": "1"}}]), "median"),
    "no statistics": (content(benchmarks=[{"fullname": "x"}]), "stats"),
    "not a number": (json.dumps(content(seconds=float("nan"))), "NaN"),
    "no date": (content(datetime="yesterday"), "datetime"),
    "half a character": (
        json.dumps(content(benchmarks=[{"fullname": "\ud800", "stats": {"median": 1}}])),
        "half a character",
    ),
    "the first day": (content(datetime="0001-01-01T00:00:00+23:59"), "which no calendar has"),
    "the last day": (content(datetime="9999-12-31T23:59:59-23:59"), "which no calendar has"),
    "a long time": (content(seconds=1e95), "has a duration that is none"),
    "a longer time": (
        json.dumps(content(seconds=1)).replace('"median": 1', '"median": ' + "1" * 5001),
        "a number of 5001 digits",
    ),
    "a deep machine": (
        json.dumps(content()).replace('"brand_raw"', f'"x": {"[" * 500}{"]" * 500}, "brand_raw"'),
        "nested too deeply",
    ),
    "our own": (benchmark_json(read(run_of(STORY), baselines={})), "perfsuite wrote"),
}


@pytest.mark.parametrize("name", BAD)
def test_another_file_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    told, why = BAD[name]
    path = write(tmp_path, told)
    with pytest.raises(StoreError) as caught:
        read_benchmark(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_names_are_stored_as_they_can_be_shown(tmp_path: Path) -> None:
    odd = content()
    odd["benchmarks"][0]["fullname"] = "a\x1b[2J\u202e"
    odd["machine_info"]["node"] = "n\x07"
    run = read_benchmark(write(tmp_path, odd))
    assert run.points[0].key.variant == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    assert run.unit == "n\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def perfsuite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Run a command of the history in an empty project; return its exit code and what it said."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFSUITE_HISTORY", raising=False)

    def call(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["perfsuite", "history", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), "".join(capfd.readouterr())

    return call


def test_old_series_say_since_when(perfsuite: Command, tmp_path: Path) -> None:
    noise = [0.001 * (7 * n % 5 - 2) for n in range(20)]
    files = [
        str(write(tmp_path, content(n, 3e-6 * (1 + part + 0.1 * (n >= 12))), f"{n:04}.json"))
        for n, part in enumerate(noise)
    ]
    code, said = perfsuite("import", *files)
    assert (code, said.count(": stored\n")) == (0, 20)
    code, said = perfsuite(NAME)
    assert code == 0
    assert f"{NAME}: time_us on pytest-benchmark_amd-epyc (pytest-benchmark)" in said
    assert "since 2025-01-13 03:00 UTC: +" in said
    assert f"{11:012x}..{12:012x}" in said
    with History(DEFAULT, tmp_path) as history:
        (series,) = series_of(history, NAME)
        assert len(series.change_points or ()) == 1
    code, said = perfsuite("trends")
    assert code == 0
    assert "pytest-benchmark-amd-epyc.html" in said


def test_a_file_is_stored_once_and_a_bad_one_stops_no_other(
    perfsuite: Command, tmp_path: Path
) -> None:
    good, bad = write(tmp_path, content()), write(tmp_path, "{}", "bad.json")
    odd = [str(write(tmp_path, BAD[name][0], f"{name}.json")) for name in BAD]
    code, said = perfsuite("import", "missing.json", str(bad), *odd, str(good), str(good))
    assert code == 1
    assert said.count(": not stored: ") == len(odd) + 2
    assert "missing.json: not stored: cannot read the file" in said
    assert f"{bad}: not stored: " in said
    assert f"{good}: stored" in said
    assert f"{good}: was there already" in said
