"""One rank of a variant that torchrun starts, on one node or several; run as ``python -m``."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfsuite.boundary import PerfError, UsageError, from_environment
from perfsuite.devices.protocol import Device, Gang, join_elastic, open_device
from perfsuite.engine.measure import Session
from perfsuite.model import (
    GPU_DEVICE,
    HOST_DEVICE,
    Evidence,
    Result,
    Settings,
    Stage,
    Status,
    Tier,
    Variant,
)
from perfsuite.packs.find import discover
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_need
from perfsuite.store.codec import decode, encode
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.panel import gang_unit, merged
from perfsuite.workers.process import inventory


def measure(variant: Variant, origin: str, device_name: str, seed: int = 0) -> Result | None:
    """Measure with the other ranks; rank 0 returns the result. Raises what the variant raises."""
    gang = join_elastic(device_name)
    device = open_device(device_name, seed=seed, gang=gang)
    refuse_misfit(variant, gang, device)
    settings = Settings()
    case = load_pack(variant.pack, origin).cases[variant.case.name]
    session = Session(device, case, variant.axes, settings, seed)
    session.prepare()
    for _ in range(settings.rounds):
        session.block()
    session.recheck()
    evidence = replace(session.finish(), unit=device.facts().unit)
    parts = gang.gather(encode(evidence).decode())
    gang.leave()  # not after a failure: the others may wait elsewhere, and torchrun ends them
    if gang.rank:
        return None
    found = [decode(part.encode(), Evidence) for part in parts]
    whole = merged(found, variant.case.metrics)
    return Result(
        variant=variant.id,
        status=Status.OK,
        stage=Stage.SCREEN,
        evidence=(replace(whole, unit=gang_unit(each.unit for each in found)),),
        case_version=variant.case.version,
    )


def refuse_misfit(variant: Variant, gang: Gang, device: Device) -> None:
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
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("variant", help="its id, as perfsuite list shows it")
    parser.add_argument("--pack", action="append", type=Path, default=[], help="a file or folder")
    parser.add_argument("--device", default="auto", choices=["auto", GPU_DEVICE, HOST_DEVICE])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    given = parser.parse_args(arguments)
    try:
        variant, origin = _found(given.variant, given.pack)
        device = (
            given.device if given.device != "auto" else GPU_DEVICE if inventory() else HOST_DEVICE
        )
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


def _found(name: str, extra: Sequence[Path]) -> tuple[Variant, str]:
    if "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "this is one rank of several, and nothing says which",
            remedy="start it by torchrun, or measure on one node with pytest --perf",
        )
    own = [s for s in discover(Path.cwd(), extra=extra) if s.name == name.partition(".")[0]]
    for pack in load_catalogue(own[:1], tier=Tier.FULL):
        if pack.error:
            raise UsageError(pack.error)
        for variant in pack.variants:
            if variant.id == name and variant.is_gang:
                return variant, pack.origin
    raise UsageError(
        f"{name!r} is no variant that ranks run together",
        remedy="copy an id from perfsuite list, in quotes; name its pack by --pack",
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
