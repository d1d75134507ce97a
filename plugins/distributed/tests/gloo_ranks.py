"""One rank of a gang on the CPU: builds the cases named in argv and checks them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfsuite_distributed import bucketing, collective, overlap, peer_copy

import perfsuite
from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

CASES = {
    case.name: case
    for module in (bucketing, collective, overlap, peer_copy)
    for case in module.CASES
    if isinstance(case, perfsuite.Case)
}


def main() -> None:
    rank, ranks, rendezvous, orders = sys.argv[1:]
    store = dist.FileStore(rendezvous, int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    device = open_device("cpu")
    for name, axes in json.loads(orders):
        context = SimpleNamespace(rank=int(rank), ranks=int(ranks), device="cpu")
        built = CASES[name].build(context, **axes)
        if isinstance(built, perfsuite.Scenario):
            check(device, built, seed=1)
            _, metrics = built.play(2)
            sys.stdout.write(f"{name} {json.dumps(metrics)}\n")
        elif isinstance(built, perfsuite.Workload):
            check(device, built, seed=1)
            exact = built.exact() if built.exact else {}
            sys.stdout.write(f"{name} {json.dumps(exact)}\n")
    dist.destroy_process_group()


main()
