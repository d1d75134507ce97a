"""One rank of a gang on the CPU: checks the cases named in argv, and prints their metrics."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import perfsuite
from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check
from perfsuite.packs.load import load_pack


def main() -> None:
    rank, ranks, rendezvous, orders = sys.argv[1:]
    store = dist.FileStore(rendezvous, int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    device, cases = (
        open_device("cpu"),
        load_pack("distributed", "module:perfsuite_distributed@").cases,
    )
    for name, axes in json.loads(orders):
        context = SimpleNamespace(rank=int(rank), ranks=int(ranks), device="cpu")
        built: Any = cases[name].build(context, **axes)
        check(device, built, seed=1)
        if isinstance(built, perfsuite.Scenario):
            found = built.play(2)[1]
        else:
            found = built.exact(*built.make_inputs(device.rng(2))) if built.exact else {}
        sys.stdout.write(f"{name} {json.dumps(found)}\n")
    dist.destroy_process_group()


main()
