"""benchmark.json is what pytest-benchmark itself writes, and its own command reads it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_data as data

from perfsuite.interop import benchmark_json, stats
from perfsuite.model import Status, Word
from perfsuite.report.data import read


def written(*story: data.Told) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(benchmark_json(read(data.run_of(story), baselines={})))
    return found


@pytest.mark.parametrize("count", range(1, 14))
def test_statistics_are_those_of_pytest_benchmark(count: int) -> None:
    theirs = pytest.importorskip("pytest_benchmark.stats")
    rng = random.Random(count)  # noqa: S311 - made-up durations
    durations = [rng.lognormvariate(-9, 0.3) for _ in range(count)]
    peer = theirs.Stats()
    for duration in durations:
        peer.update(duration)
    expected = peer.as_dict()
    ours = dict(stats(durations))
    assert ours.pop("data") == durations
    assert ours.pop("outliers") == expected.pop("outliers")
    assert ours == pytest.approx(expected)


def test_only_what_was_timed_and_ended_ok_is_in_it() -> None:
    # github-action-benchmark reads fullname and ops, stddev, mean, rounds of stats; Bencher reads
    # machine_info, commit_info, fullname and median, iqr of stats.
    found = written(*data.STORY)
    assert found.keys() == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    assert isinstance(found["machine_info"], dict)
    assert found["commit_info"] == {"id": "9c1e4f70a2b85d3340cc", "dirty": False}
    numbers = ("ops", "stddev", "mean", "rounds", "median", "iqr", "min", "max", "iterations")
    for one in found["benchmarks"]:
        assert one.keys() >= {"fullname", "group", "name", "params", "extra_info", "options"}
        assert all(isinstance(one["stats"][name], (int, float)) for name in numbers)
    fine = [told for told in data.STORY if isinstance(told.word, Word) and told.time_us]
    names = sorted(data.variant_of(told).id for told in fine)
    assert sorted(one["fullname"] for one in found["benchmarks"]) == names
    assert written(*(t for t in data.STORY if t.word is Status.WRONG))["benchmarks"] == []
    # Processes are the rounds, in seconds.
    (one,) = written(data.STORY[0])["benchmarks"]
    assert one["stats"]["rounds"] == len(one["stats"]["data"]) == 3
    assert one["stats"]["median"] == pytest.approx(data.STORY[0].time_us * 1e-6, rel=0.05)
    assert one["extra_info"]["verdict"] == "same"


def test_pytest_benchmark_compares_two_of_them(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    slower = replace(data.STORY[0], time_us=2 * data.STORY[0].time_us)
    for name, told in (("before", data.STORY[0]), ("now", slower)):
        text = benchmark_json(read(data.run_of((told,)), baselines={}))
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    code = "from pytest_benchmark.cli import main; main()"
    words = [sys.executable, "-c", code, "compare", "before.json", "now.json", "--columns=mean"]
    said = subprocess.check_output(words, cwd=tmp_path, stderr=subprocess.STDOUT, text=True)
    assert said.count(data.variant_of(data.STORY[0]).id) == 2
    assert "(2.0" in said or "(1.9" in said
    assert "Failed to load" not in said
