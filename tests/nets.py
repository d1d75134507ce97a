"""The one place where the corpus calls inside the product: plain data in, plain verdicts out.

Whoever moves or rewrites the judge mends these functions; what they return is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from store_data import made, planned

from perfsuite import model
from perfsuite.cli import judged_against
from perfsuite.judge.noise import entries_of
from perfsuite.judge.verdict import judge, judge_claims
from perfsuite.run.expected import find_expected
from perfsuite.run.run import Judging
from perfsuite.store.runs import load_run

# A process: its samples by clock.
Process = Mapping[str, Any]
Told = dict[str, Any]


def judge_file(path: Path, baselines: Path, empty: Path) -> dict[str, Any]:
    """Judge a run file against a folder of baselines, as its run did; ``empty`` has no runs."""
    run = _load(path)
    basis = find_expected([baselines], empty, run=run)
    judging, run = Judging(basis), basis.hold(run)
    stages = {
        stage: judging.stage(run, stage) for stage in (model.Stage.SCREEN, model.Stage.CONFIRM)
    }
    last = {name: verdict for stage in stages.values() for name, verdict in stage.items()}
    claims = judge_claims(run)
    whole = judging.whole(run, last, claims)
    return {
        **{stage.value: _told(verdicts.values()) for stage, verdicts in stages.items()},
        "whole": _told(whole.verdicts),
        "claims": {c.claim: [c.word.value, c.fails, c.ratio, c.low, c.high] for c in whole.claims},
    }


def compare_files(path: Path, before: Path) -> dict[str, Told]:
    """Judge a run file as if another were its baseline."""
    return _told(judged_against(_load(path), _load(before)).run.verdicts)


def judge_samples(samples: Sequence[Mapping[str, Any]], *, in_turns: bool) -> dict[str, Told]:
    """Judge variants' processes ``now`` by those ``before``, all as one run on an H200.

    Each has ``variant`` (its id), ``work``, ``before`` and ``now`` (processes by unit).
    """
    variants = [_variant(each) for each in samples]
    before, now = (
        {v.id: _result(v.id, each[side]) for v, each in zip(variants, samples, strict=True)}
        for side in ("before", "now")
    )
    unit = next(iter(samples[0]["now"]))
    facts = model.DeviceFacts(
        device="cuda", name="H200", unit=unit, identity={}, clocks=("time_us", "cycles")
    )
    sku = model.Sku(slug="nvidia-h200", name="H200")
    run = replace(planned(*variants), sku=sku, facts=facts).having(results=before.values())
    expected = {
        name: model.Expected(entry=entry, source="before", in_turns=in_turns)
        for name, entry in entries_of(run).items()
    }
    judged = (
        model.VariantRun(
            variant=v, expected=expected.get(v.id, model.Expected()), results=(now[v.id],)
        )
        for v in variants
    )
    return _told(judge(replace(run, variants=tuple(judged))))


_load = cache(load_run)


def _variant(sample: Mapping[str, Any]) -> model.Variant:
    pack, _, name = sample["variant"].partition("[")[0].partition(".")
    work = model.Work(**sample["work"])
    return replace(made(pack, name, {}, work=work), id=sample["variant"])


def _result(variant: str, processes: Mapping[str, Iterable[Process]]) -> model.Result:
    evidence = [
        _evidence(slot, unit, process)
        for unit, row in processes.items()
        for slot, process in enumerate(row)
    ]
    return model.Result(
        variant=variant, status=model.Status.OK, stage=model.Stage.SCREEN, evidence=tuple(evidence)
    )


def _evidence(slot: int, unit: str, process: Process) -> model.Evidence:
    blocks = tuple(
        model.Block(time_us=(time_us,), cycles=(cycles,))
        for time_us, cycles in zip(process["time_us"], process["cycles"], strict=True)
    )
    return model.Evidence(slot=slot, seed=slot, unit=unit, blocks=blocks)


def _told(verdicts: Iterable[model.Verdict]) -> dict[str, Told]:
    return {
        verdict.variant: {
            "word": verdict.word.value,
            "fails": verdict.fails,
            "changes": {c.metric: [c.theta, c.low, c.high] for c in verdict.changes},
        }
        for verdict in verdicts
    }
