"""Hands out recorded processes, each once, as the results and the entries of a run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from perfsuite.model import BaselineEntry, Block, Evidence, Result, Run, Stage, Status, Variant
from perfsuite.prove.raw import Process, Raw, Wave
from perfsuite.runs import entries_of

Deck = dict[tuple[str, str], list[Wave]]


def deck_of(raw: Raw, seed: int | None = None) -> Deck:
    """Return the whole waves of warm servers by variant and unit, their processes mixed by seed."""
    size = raw.header.settings.processes
    found: dict[tuple[str, str], list[Wave]] = defaultdict(list)
    for wave in raw.waves:
        if not wave.fresh and len(wave.processes) == size:
            found[wave.variant, wave.unit].append(wave)
    if seed is not None:
        for (variant, unit), waves in found.items():
            processes = [process for wave in waves for process in wave.processes]
            random.Random(f"{seed} {variant} {unit}").shuffle(processes)  # noqa: S311 - an order
            for index, wave in enumerate(waves):
                mixed = tuple(processes[index * size : (index + 1) * size])
                waves[index] = replace(wave, processes=mixed)
    return found


def result_of(variant: Variant, stage: Stage, waves: Sequence[Wave]) -> Result:
    """Return waves as the result of a stage."""
    return Result(
        variant=variant.id,
        status=Status.OK,
        stage=stage,
        case_version=variant.case.version,
        evidence=tuple(_evidence(process, wave) for wave in waves for process in wave.processes),
    )


def _evidence(process: Process, wave: Wave) -> Evidence:
    blocks = [
        Block(time_us=(time_us,), cycles=process.cycles[index : index + 1])
        for index, time_us in enumerate(process.time_us)
    ]
    return Evidence(
        slot=0,
        seed=0,
        unit=wave.unit,
        launches=wave.launches,
        backend=wave.backend,
        pace=wave.pace,
        sets=wave.sets,
        blocks=tuple(blocks),
    )


def entry_of(raw: Raw, variant: Variant, waves: Sequence[Wave]) -> BaselineEntry:
    """Return waves as the product would store them as a baseline."""
    run = Run(
        id="proof",
        started="",
        command="",
        sku=raw.header.sku,
        facts=raw.header.facts,
        settings=raw.header.settings,
        variants=(variant,),
        results=(result_of(variant, Stage.SCREEN, waves),),
    )
    return entries_of(run)[variant.id]
