"""Write the accepted numbers of a SKU as a run file, which ``perfsuite compare`` can stand beside.

Usage: python tools/baseline_run.py SKU... --to DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfsuite.judge.verdict import judge_claims
from perfsuite.model import (
    CLOCKS,
    Block,
    DeviceFacts,
    Evidence,
    Result,
    Run,
    Settings,
    Status,
    Tier,
    VariantRun,
)
from perfsuite.packs.find import discover
from perfsuite.packs.select import claims_of
from perfsuite.store.baselines import Baselines, StoredEntry, read_sku
from perfsuite.store.runs import RunFile
from perfsuite.workers.process import load_catalogue

ROOT = Path(__file__).parent.parent
BASELINES = ROOT / "baselines"


def main(words: Sequence[str] | None = None) -> None:
    """Write the run files that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("skus", nargs="+", metavar="SKU", help="a folder of baselines/")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write")
    asked = parser.parse_args(words)
    packs = load_catalogue(discover(ROOT), tier=Tier.FULL)
    for slug in asked.skus:
        stored = Baselines.load([BASELINES], read_sku(BASELINES / slug))
        known = [each for pack in packs for each in pack.variants if each.id in stored.entries]
        # The numbers are of several runs and commits; what is said of the machine is the newest's.
        newest = max(stored.runs.values(), key=lambda each: each.run)
        run = Run(
            id=f"{newest.run[:15]}-{slug.rpartition('nvidia-')[2]}",
            started=newest.started,
            command="",
            sku=stored.sku,
            facts=DeviceFacts(
                device="cuda",
                name=stored.sku.name,
                unit="",
                identity=stored.sku.facts,
                environment=newest.environment,
                arch=newest.environment.get("arch", ""),
                clocks=CLOCKS,
                features=("cuda",),
            ),
            settings=Settings(),
            variants=tuple(VariantRun(variant=each) for each in known),
            instances=claims_of(packs, known),
        )
        with RunFile.create(asked.to, run) as file:
            for each in known:
                processes = tuple(evidence_of(stored.entries[each.id]))
                file.append(Result(variant=each.id, status=Status.OK, evidence=processes))
            ended = file.finish(replace(file.run, claims=judge_claims(file.run)))
        print(f"{asked.to / 'runs' / ended.id}.jsonl: {len(known)} variants")


def evidence_of(entry: StoredEntry) -> Iterator[Evidence]:
    """Yield the processes of an entry; each has one sample, which is what it was judged by."""
    exact = {name: each.center for name, each in entry.metrics.items() if not each.values}
    timed = {name: each.values for name, each in entry.metrics.items() if each.values}
    slot = 0
    for unit in sorted(entry.cards) or [""]:
        columns = {name: values[unit] for name, values in timed.items()}
        for index in range(len(next(iter(columns.values()), [0.0]))):
            own = {name: (column[index],) for name, column in columns.items()}
            time, cycles = (own.pop(name, ()) for name in CLOCKS)
            block = Block(time_us=time, cycles=cycles, metrics=own)
            yield Evidence(slot=slot, seed=0, unit=unit, blocks=(block,), exact=exact)
            slot += 1


if __name__ == "__main__":
    main()
