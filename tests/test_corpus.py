"""Frozen verdicts: on every recorded run, and in what runs on the scripted device leave.

``python tests/test_corpus.py`` freezes today's, of ``recorded`` or ``played`` alone if named. A
change of a word or a number is a decision: say in the commit which and why.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from fake_runs import STORIES, play
from nets import compare_files, judge_file, judge_samples

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"
PROOF = ROOT / "docs" / "proof"
FROZEN = {"recorded": DATA / "corpus.json.gz", "played": DATA / "fake_runs.json"}
RUNS = {path.name[:15]: path for path in sorted(PROOF.glob("20261121-??????-*.jsonl.gz"))}
ARMS = (("A", "B"), ("A", "A"), ("B", "A"))
# Beside a relative 1e-9, for what is about 0.
NOTHING = 1e-12


def files() -> Iterator[tuple[str, Any]]:
    """Judge each committed run by the committed baselines, and the proof's by each other."""
    places = {
        **{name: (path, ROOT / "baselines") for name, path in RUNS.items()},
        "example": tuple(ROOT / "reports/example" / name for name in ("run.jsonl", "baselines")),
        "gold": tuple(ROOT / "tests/gold" / name for name in ("run-1.jsonl", "baselines")),
    }
    with tempfile.TemporaryDirectory() as empty:
        for name, (path, baselines) in places.items():
            yield f"run {name}", judge_file(path, baselines, Path(empty))
    for (name, path), (other, before) in permutations(RUNS.items(), 2):
        found = {k: v for k, v in compare_files(path, before).items() if v["changes"]}
        if found:
            yield f"run {name} against {other}", found


def kernels() -> Iterator[tuple[str, Any]]:
    """Judge the recorded kernels: each arm by the other, on the same unit and on another."""
    recorded = json.loads((DATA / "h200.json").read_text("utf-8"))
    for mode in ("paced", "back_to_back"):
        arms = {
            name: {
                arm: {unit: processes(row) for unit, row in units.items()}
                for arm, units in kernel["series"][mode].items()
            }
            for name, kernel in recorded.items()
            if mode in kernel["series"]
        }
        # 3 processes screen, 6 confirm; units of the baseline and the one that is measured; arms.
        many = product((3, 6), (("0", "0"), ("1", "0"), ("123", "0"), ("0123", "2")), ARMS)
        for count, (before, unit), (was, now) in many:
            title = f"{mode}: {count} of {now} on {unit} by {was} on {before}"
            # Of pairs there are as many processes of either side.
            for in_turns in (False, True) if before == unit else (False,):
                kept = count if in_turns else 3
                found = [
                    {
                        "variant": f"recorded.{name}[]",
                        "work": recorded[name]["work"],
                        "before": {f"unit{i}": sides[was][f"unit{i}"][-kept:] for i in before},
                        "now": {f"unit{unit}": sides[now][f"unit{unit}"][:count]},
                    }
                    for name, sides in arms.items()
                    if {was, now} <= sides.keys()
                ]
                told = f"{title}, in turns" if in_turns else title
                yield told, judge_samples(found, in_turns=in_turns)


def processes(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: [value] for name, value in zip(row, each, strict=True)}
            for each in zip(*row.values(), strict=True)]  # fmt: skip


RECORDED: tuple[Callable[[], Iterator[tuple[str, Any]]], ...] = (files, kernels)


@cache
def frozen(name: str) -> Any:
    data = FROZEN[name].read_bytes()
    return json.loads(gzip.decompress(data) if FROZEN[name].suffix == ".gz" else data)


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a plain value holds by its place, of lists and mappings how many they are."""
    if isinstance(value, dict | list):
        yield f"{where} / count", len(value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{where} / {key}")
    else:
        yield where, value


def is_same(was: Any, now: Any) -> bool:
    if isinstance(was, float) and isinstance(now, float | int):
        return math.isclose(was, now, rel_tol=1e-9, abs_tol=NOTHING)
    return bool(was == now)


def compare(was: Any, now: Any) -> None:
    before, after = dict(leaves(was)), dict(leaves(json.loads(json.dumps(now))))
    pairs = {place: (before.get(place), after.get(place)) for place in before | after}
    found = [f"{place}: {a!r}, now {b!r}" for place, (a, b) in pairs.items() if not is_same(a, b)]
    assert not found, "\n".join([f"{len(found)} differ", *found[:20]])


@pytest.mark.parametrize("part", RECORDED, ids=lambda part: part.__name__)
def test_recorded_data_are_judged_as_before(part: Callable[[], Iterator[tuple[str, Any]]]) -> None:
    compare(frozen("recorded")[part.__name__], dict(part()))


@pytest.mark.parametrize("story", STORIES)
def test_runs_on_the_scripted_device_end_as_before(story: str, tmp_path: Path) -> None:
    compare(frozen("played")[story], play(story, tmp_path / "project"))


def freeze(names: Sequence[str]) -> None:
    """Write what the tests compare with, or only one part of it, "recorded" or "played"."""
    if "recorded" in names:
        freeze_recorded()
    if "played" in names:
        freeze_played()


def freeze_recorded() -> None:
    recorded = {part.__name__: dict(part()) for part in RECORDED}
    text = json.dumps(recorded, separators=(",", ":"))
    FROZEN["recorded"].write_bytes(gzip.compress(text.encode(), mtime=0))


def freeze_played() -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = {story: play(story, Path(folder, story)) for story in STORIES}
    FROZEN["played"].write_text(json.dumps(played, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    freeze(sys.argv[1:] or list(FROZEN))
