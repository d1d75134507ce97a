"""Nodes with several GPUs, on fake ones: all of one product are used, others are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from test_runner import QUICK, WATCHED, Log, request

from perfsuite.model import Gpu, Run, Settings, Stage
from perfsuite.run.run import execute
from perfsuite.workers.process import resident_bytes
from perfsuite.workers.units import Desks, products_of

UNITS = {f"fa4e0000000{index}" for index in range(3)}


def run_on(gpus: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Log]:
    """Return a run of six variants and a canary on the GPUs named."""
    monkeypatch.setenv("PERFSUITE_FAKE_GPUS", gpus)
    text = WATCHED.replace("[100, 200, 400, 50]", "[100, 200, 400, 500, 600, 700, 50]")
    asked = request(folder, text, settings=structs.replace(QUICK, processes=1, confirm_processes=1))
    log = Log()
    return execute(replace(asked, variants=asked.variants[:6]), log).run, log


def test_all_gpus_of_a_node_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, log = run_on("H,H,H", tmp_path, monkeypatch)
    assert run.units.keys() == UNITS
    assert run.facts.gpus == 3
    where: dict[str, set[str]] = {}
    for result in run.results:
        kind = "canary" if result.stage is Stage.CANARY_START else result.variant
        where.setdefault(kind, set()).update(process.unit for process in result.evidence)
    assert where.pop("canary") == UNITS
    of_variants = [unit for variant in run.variants for unit in where[variant.id]]
    assert sorted(of_variants) == sorted([*UNITS, *UNITS])
    assert not any("not used" in note for note in (*run.notes, *log.notes))


def test_a_node_of_two_products_measures_the_first_and_names_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, log = run_on("H,B,H,B", tmp_path, monkeypatch)
    assert run.units.keys() == {"fa4e00000000", "fa4e00000002"}
    (told,) = [note for note in run.notes if "not used" in note]
    assert told in log.notes
    assert told.startswith("2 x Fake B")
    assert told.endswith("run with CUDA_VISIBLE_DEVICES=FAKE-1,FAKE-3")


def test_boards_of_one_product_are_told_apart() -> None:
    cards = [Gpu(index=n, uuid=str(n), name="H", board=board) for n, board in enumerate("aab")]
    assert [[gpu.index for gpu in group] for group in products_of(cards)] == [[0, 1], [2]]


def test_desks_are_kept_for_runs_of_the_same_settings(tmp_path: Path) -> None:
    asked = request(tmp_path)
    with Desks() as desks:
        first = desks.of("fake", asked.packs, Settings(processes=1), {})
        assert desks.of("fake", asked.packs, Settings(processes=1), {}) is first
        (server,) = first[0].panel.ping()
        other = desks.of("fake", asked.packs, Settings(processes=2), {})
        assert resident_bytes(server) == 0
        assert len(other[0].panel.ping()) == 2
