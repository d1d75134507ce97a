"""Shards that agree without talking, and their runs as one: judged as a whole, gaps named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import store_data
from msgspec import structs
from test_runner import QUICK, WATCHED, Log, failing_by, request, slow_down

from perfsuite.boundary import UsageError
from perfsuite.model import Pack, Revision, Run, Shard, Stage, Word
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.nightly.merge import conclude, merged
from perfsuite.packs.select import bundles_of, shard_of
from perfsuite.report.data import read
from perfsuite.report.files import render_page, verdict_json
from perfsuite.run.accept import accept
from perfsuite.run.expected import source_of
from perfsuite.run.run import Outcome, execute
from perfsuite.store.baselines import Baselines
from perfsuite.store.runs import RunFile, load_run

FIVE = WATCHED.replace("[100, 200, 400, 50]", "[100, 200, 300, 400, 500, 50]").replace(
    "perfsuite.cuda().when(us=300)", "perfsuite.cuda().when(us=7)"
)


def ids(variants: Any) -> list[str]:
    return [variant.id for variant in variants]


def test_machines_agree_on_shards_and_claims_stay_together() -> None:
    variants = [store_data.variant(f"memory.case{index}", 1) for index in range(60)]
    names = ids(variants)
    some = pairwise(names[:10])
    chain = [structs.replace(store_data.TWICE, id=f"{a}<{b}", faster=a, than=b) for a, b in some]
    for count in (1, 2, 3, 7):
        shards = [shard_of(variants, chain, index=n + 1, count=count) for n in range(count)]
        assert sorted(name for chosen, _ in shards for name in ids(chosen)) == sorted(names)
        assert sum(set(names[:10]) <= set(ids(chosen)) for chosen, _ in shards) == 1
        assert len({shard.whole for _, shard in shards}) == 1
        assert [str(shard) for _, shard in shards] == [f"{n + 1}/{count}" for n in range(count)]
    # Whatever the order, and a new variant moves no other.
    before = ids(shard_of(variants, [], index=2, count=3)[0])
    assert sorted(ids(shard_of(variants[::-1], [], index=2, count=3)[0])) == sorted(before)
    more = shard_of([*variants, store_data.variant("memory.another", 1)], [], index=2, count=3)[0]
    assert set(before) <= set(ids(more)) <= {*before, "memory.another[n=1]"}


def test_the_gangs_of_a_case_stay_together() -> None:
    variants = [store_data.variant("memory.all_reduce", n) for n in (2, 4, 8)]
    ranked = [structs.replace(v, case=structs.replace(v.case, ranks="n")) for v in variants]
    two = structs.replace(ranked[0], id="memory.all_reduce[n=2,op=sum]")
    bundles = [ids(bundle) for bundle in bundles_of([*ranked, two], [])]
    assert bundles == [[ranked[0].id, two.id], [ranked[1].id], [ranked[2].id]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run of five variants with a canary, one slower than accepted, and the accepted numbers."""
    folder = tmp_path_factory.mktemp("ran")
    found = request(folder, FIVE, settings=structs.replace(QUICK, processes=2, confirm_processes=3))
    asked = replace(found, variants=found.variants[:5])
    accept(execute(asked, Log()).run, folder / "baselines", reason="first", by="me")
    slow_down(folder, 200, by=1.05)
    return execute(asked, Log()).run, folder / "baselines"


def split(run: Run, count: int = 2, unit: str = "") -> list[Run]:
    """Return the run as ``count`` machines would have measured it, each on a unit of its own."""
    shards = []
    for index in range(count):
        own, at = run.variants[index::count], unit or f"{index}" * 12
        names = {variant.id for variant in (*own, *run.canaries)}
        shard = Shard(
            index=index + 1, count=count, total=len(run.variants), whole="w", tier="smoke"
        )
        results = [
            structs.replace(r, evidence=tuple(structs.replace(e, unit=at) for e in r.evidence))
            for r in run.results
            if r.variant in names
        ]
        change = {
            "id": f"{run.id[:-1]}{index}",
            "variants": own,
            "results": tuple(results),
            "verdicts": (),
            "facts": structs.replace(run.facts, unit=at),
            "units": {at: run.facts.name},
            "notes": (f"note of {index}",),
            "commit": "0" * 40,
            "shard": shard,
        }
        shards.append(store_data.changed(run, **change))
    return shards


def whole_of(runs: list[Run], folder: Path, *packs: Pack) -> Outcome:
    roots = (folder / "baselines",)
    return conclude(
        merged(runs),
        folder=folder / ".perfsuite",
        roots=roots,
        exceptions=Exceptions.load(roots, date(2026, 11, 1)),
        packs=packs,
    )


def test_shards_are_judged_as_the_whole_run_is(ran: tuple[Run, Path], tmp_path: Path) -> None:
    run, baselines = ran
    shutil.copytree(baselines, tmp_path / "baselines")
    outcome = whole_of(split(run, unit=run.facts.unit), tmp_path)
    whole, joined = (
        {v.variant: (v.word, v.fails, v.changes) for v in each.verdicts}
        for each in (run, outcome.run)
    )
    assert (joined, outcome.run.gaps) == (whole, ())
    assert load_run(outcome.run_file) == store_data.stored(outcome.run)
    # Of a screen alone a change is unclear; that fails where the shards say so.
    screens = tuple(r for r in run.results if r.stage is not Stage.CONFIRM)
    run = structs.replace(run, id=f"{run.id}-x", settings=failing_by("unclear"))
    shards = split(run.having(results=screens), unit=run.facts.unit)
    found = {v.variant: v for v in whole_of(shards, tmp_path).run.verdicts}
    slower = found["acme.double[us=200]"]
    assert (slower.word, slower.fails) == (Word.UNCLEAR, True)


def test_a_merged_run_has_both_machines_canaries_and_is_accepted_and_reported(
    ran: tuple[Run, Path], tmp_path: Path
) -> None:
    run, _ = ran
    first, second = split(run)
    second = structs.replace(
        second, facts=structs.replace(second.facts, environment={"driver": "fake 2.0"})
    )
    RunFile.create(tmp_path / ".perfsuite", merged([second, first])).close()  # it was stopped
    found = whole_of([second, first], tmp_path).run
    assert (bool(run.forecasts), found.forecasts) == (True, ())  # one shard's are not the whole's
    ends = {r.stage: {p.unit for p in r.evidence} for r in found.results if r.stage.is_canary}
    both = {"0" * 12, "1" * 12}
    assert ends == {Stage.CANARY_START: both, Stage.CANARY_END: both}
    assert found.units.keys() == {"0" * 12, "1" * 12}
    assert [str(part.shard) for part in found.parts] == ["1/2", "2/2"]
    assert found.parts[1].facts.environment == {"driver": "fake 2.0"}
    (told,) = (note for note in found.notes if note.startswith("environment differs between"))
    assert told.endswith(": driver is fake 1.0 (shard 1/2), fake 2.0 (shard 2/2)")
    assert "shard 2/2: note of 1" in found.notes
    assert "2/2 on 111111111111" in render_page(read(found, baselines={}))
    accepted = accept(found, tmp_path / "baselines", reason="all shards", by="me")
    assert len(accepted.added) == len(run.variants) + len(run.canaries) == 6
    assert len(Baselines.load([tmp_path / "baselines"], found.sku).entries) == 6
    with pytest.raises(UsageError, match="merged before"):
        whole_of([first, second], tmp_path)
    again = [structs.replace(each, id=f"2999{each.id}") for each in (first, second)]
    (tmp_path / "baselines").rename(tmp_path / "old")
    assert source_of(whole_of(again, tmp_path).run) == f"first run {found.id}"


def test_a_missing_shard_is_named_and_makes_the_run_partial(
    ran: tuple[Run, Path], tmp_path: Path
) -> None:
    first, _, third = split(ran[0], 3)
    run_view = read(
        whole_of([first, structs.replace(third, finished="")], tmp_path).run, baselines={}
    )
    told = "shard 2/3 is missing; shard 3/3 was interrupted; 2 of 5 variants are not in this run"
    assert "; ".join(run_view.run.gaps) == told
    assert run_view.headline.startswith(told.removesuffix("2 of 5 variants are not in this run"))
    assert '"gaps":["shard 2/3 is missing"' in verdict_json(run_view)


def shard(index: int, *cases: str, **fields: Any) -> Run:
    run = store_data.finished(dict.fromkeys(cases, 100.0), run_id=f"2026112{index}-000000-aaaa")
    whole = Shard(index=index, count=2, total=2, whole="w", tier="nightly")
    return store_data.changed(run, shard=whole, instances=(), **fields)


def other(field: str, value: Any) -> Callable[[Run], Run]:
    return lambda run: structs.replace(run, **{field: value})


def of_shard(**fields: Any) -> Callable[[Run], Run]:
    return lambda run: structs.replace(
        run, shard=run.shard and structs.replace(run.shard, **fields)
    )


USUAL = QUICK.policy.fail_on
B200 = structs.replace(store_data.SKU, slug="nvidia-b200")
NO_ECC = structs.replace(store_data.FACTS, state={"ecc": "off"})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other("commit", "1" * 40), "different commits"),
        (other("sku", B200), "different SKUs: nvidia-h200"),
        (of_shard(tier="full"), "different tiers: nightly and full"),
        (of_shard(count=3), "different numbers of shards: 2 and 3"),
        (of_shard(whole="x"), "different selections"),
        (other("settings", structs.replace(QUICK, seed=7)), "different seeds: 0 and 7"),
        (other("settings", structs.replace(QUICK, rounds=9)), "different ways to measure"),
        (other("settings", failing_by("new")), "1/2 and 2/2 .* --perf-fail-on: over.* and new,"),
        (other("settings", failing_by(*USUAL, gate=0.1)), "values of perf_gate: none and 10"),
        (other("facts", NO_ECC), "different states"),
        (other("shard", None), "is no shard"),
        (other("against", Revision("", "", "env")), "measured beside the same code in env, each"),
        (other("variants", shard(1, "a").variants), "is in two runs, of shards 1/2 and 2/2"),
    ],
)
def test_what_is_no_whole_is_refused(change: Callable[[Run], Run], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        merged([shard(1, "a"), change(shard(2, "b"))])


def test_uncommitted_changes_must_be_the_same() -> None:
    first, second = (shard(n, c, commit="abc-dirty", code=c) for n, c in ((1, "a"), (2, "b")))
    with pytest.raises(UsageError, match="different uncommitted changes: a and b"):
        merged([first, second])
    clean = merged([structs.replace(run, commit="abc") for run in (first, second)])
    assert (clean.gaps, [part.run for part in clean.parts]) == ((), [first.id, second.id])
