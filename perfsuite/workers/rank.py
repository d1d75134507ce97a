"""Ranks of a variant: what a gang measured as one, and one that torchrun starts (``python -m``)."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import CaseError, PerfError, UsageError, from_environment
from perfsuite.devices.protocol import Device, Gang, automatic, join_elastic, open_device
from perfsuite.engine.measure import Session
from perfsuite.packs.find import discover
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_need
from perfsuite.store.codec import encode
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.messages import raw, read

NUMBER = re.compile(r"\d[\d.]*")

# What the ranks of a gang measured together is one evidence: the slowest rank counts.


def merged(ranks: Sequence[model.Evidence], metrics: Sequence[model.Metric]) -> model.Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    if len(ranks) == 1:
        return first
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in (*model.METRICS, *metrics)}
    exact = _by_name(each.exact for each in ranks)
    phases_s = _by_name(each.phases_s for each in ranks)
    blocks = []
    for parts in zip(*(each.blocks for each in ranks), strict=True):
        # The samples of a block are taken together, so that those at one place belong together.
        has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
        samples = [zip(part.time_us, part.cycles or part.time_us, strict=False) for part in parts]
        slowest = [max(each) for each in zip(*samples, strict=False)]
        metrics_of = _by_name(part.metrics for part in parts)
        blocks.append(
            replace(
                parts[0],
                time_us=tuple(time_us for time_us, _ in slowest),
                cycles=tuple(cycles for _, cycles in slowest) if has_cycles else (),
                voided=max(part.voided for part in parts),
                metrics={
                    name: tuple(map(worst.get(name, max), zip(*columns, strict=False)))
                    for name, columns in metrics_of.items()
                },
            )
        )
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max((each.error for each in ranks if each.error is not None), default=None),
        blocks=tuple(blocks),
        exact={name: worst.get(name, max)(values) for name, values in exact.items()},
        phases_s={name: max(values) for name, values in phases_s.items()},
        notes=tuple(_notes_of([each.notes for each in ranks])),
    )


def _notes_of(found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the notes of ranks: those that differ in figures alone once, others with their rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        yield note if len(ranks) == len(found) else f"rank {', '.join(map(str, ranks))}: {note}"


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = defaultdict(list)
    for each in found:
        for name, value in each.items():
            values[name].append(value)
    return values


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]


# One rank that torchrun starts, on one node or several.


def measure(
    variant: model.Variant, origin: str, device_name: str, seed: int = 0
) -> model.Result | None:
    """Measure with the other ranks; rank 0 returns the result. Raises what the variant raises."""
    gang = join_elastic(device_name)
    device = open_device(device_name, seed=seed, gang=gang)
    refuse_misfit(variant, gang, device)
    settings = model.Settings()
    case = load_pack(variant.pack, origin).cases[variant.case.name]
    session = Session(device, case, variant.axes, settings, seed)
    session.prepare()
    for _ in range(settings.rounds):
        session.block()
    session.recheck()
    evidence = replace(session.finish(), unit=device.facts().unit)
    parts = gang.gather(bytes(raw(evidence)).decode())
    gang.leave()  # not after a failure: the others may wait elsewhere, and torchrun ends them
    if gang.rank:
        return None
    found = [read(part.encode(), model.Evidence) for part in parts]
    whole = merged(found, variant.case.metrics)
    return model.Result(
        variant=variant.id,
        status=model.Status.OK,
        evidence=(replace(whole, unit=gang_unit(each.unit for each in found)),),
        case_version=variant.case.version,
    )


def refuse_misfit(variant: model.Variant, gang: Gang, device: Device) -> None:
    """Raise UsageError unless the variant is one for these ranks and this device."""
    if gang.ranks != variant.ranks:
        raise UsageError(
            f"{variant.id} is run by {variant.ranks} ranks, and torchrun started {gang.ranks}",
            remedy="choose --nnodes and --nproc-per-node accordingly, or another variant",
        )
    if missing := missing_need(variant, replace(device.facts(), gpus=gang.ranks)):
        raise UsageError(f"{variant.id} cannot run here: it {missing}")


def main(arguments: Sequence[str]) -> int:
    """Measure as the command line says; return the exit status."""
    prog = "torchrun ... -m perfsuite.workers.rank"
    about = "One rank of a variant, on one node or several."
    parser = argparse.ArgumentParser(prog=prog, description=about, allow_abbrev=False)
    parser.add_argument("variant", help="its id, as perfsuite list shows it")
    parser.add_argument("--packs", default="", help="as --perf-packs")
    parser.add_argument("--device", default="auto", choices=["auto", *model.BUILT_IN_DEVICES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    given = parser.parse_args(arguments)
    try:
        variant, origin = _found(given.variant, [*filter(None, given.packs.split(","))])
        device = automatic()[0] if given.device == "auto" else given.device
        result = measure(variant, origin, device, given.seed)
    except PerfError as error:
        sys.stderr.write(f"rank {from_environment('RANK') or '?'}: {error}\n")
        return 2
    if result is None:
        return 0
    (evidence,) = result.evidence
    times_us = [time_us for block in evidence.samples("time_us") for time_us in block]
    sys.stdout.write(
        f"{result.variant}: median {statistics.median(times_us):.4g} us of {len(times_us)} "
        f"samples, each by its slowest rank\n"
    )
    if given.json is not None:
        given.json.write_bytes(encode(result))
    return 0


def _found(name: str, packs: Sequence[str]) -> tuple[model.Variant, str]:
    if "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "this is one rank of several, and nothing says which",
            remedy="start it by torchrun, or measure on one node with pytest --perf",
        )
    own = [s for s in discover(Path.cwd(), allow=packs) if s.name == name.partition(".")[0]]
    for pack in load_catalogue(own[:1], tier=model.Tier.FULL):
        if pack.error:
            raise UsageError(pack.error)
        for variant in pack.variants:
            if variant.id == name and variant.is_gang:
                return variant, pack.origin
    raise UsageError(
        f"{name!r} is no variant that ranks run together",
        remedy="copy an id from perfsuite list, in quotes; name its pack by --packs",
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
