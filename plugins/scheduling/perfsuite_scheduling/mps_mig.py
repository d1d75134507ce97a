"""Two processes with small jobs on one GPU: in turns, together through MPS, or in MIG slices."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite import CaseError, Metric, Regime, Scenario, case, cuda, feature, package
from perfsuite.gpu import torch
from perfsuite_scheduling import congruence, streams
from perfsuite_scheduling.mps_mig_child import ROUNDS, VALUES

CHILD = Path(__file__).with_name("mps_mig_child.py")
CLIENTS = 2
JOBS = 200


@case(
    smoke={"impl": ["one_process", "time_sliced", "mps", "mig"]},
    needs=(
        package("cuda.core"),
        cuda(),
        feature("mps").when(impl="mps"),
        feature("mig").when(impl="mig"),
    ),
    metrics=[
        Metric("job_us_p50", "us"),
        Metric("job_us_p99", "us"),
        Metric("jobs_per_s", "jobs/s", "higher"),
    ],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["sharing"],
    source="CUDA Multi-Process Service; Multi-Instance GPU User Guide; AI Systems Performance "
    "Engineering, chapters 2 and 13",
)
def mps_mig(ctx: Any, impl: str) -> Scenario:
    """Run 200 jobs for each of two clients, every job a kernel of 16 blocks that is awaited.

    ``one_process`` gives the clients a stream each in one process: the GPU runs both at once.
    ``time_sliced`` gives each a process, and the GPU works for one process at a time. ``mps`` is
    the same through the daemon of the Multi-Process Service, if one is running; ``mig`` gives each
    a slice, if the GPU has been cut into slices. Neither is ever started, stopped or set up here.
    """
    del ctx
    lanes = CLIENTS if impl == "one_process" else 1
    clients = [_process(lanes, variables) for variables in environments_of(impl)]
    for client in clients:
        answer_of(client)  # that it is ready

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        del seed
        begun = time.perf_counter()
        for client in clients:
            ask(client, JOBS)
        told = [lane for client in clients for lane in answer_of(client)]
        spent_s = time.perf_counter() - begun
        ranks = statistics.quantiles([us for lane in told for us in lane["times_us"]], n=100)
        metrics = {"job_us_p50": ranks[49], "job_us_p99": ranks[98]}
        sums = [lane["sum"] for lane in told]
        return _output(sums), {**metrics, "jobs_per_s": CLIENTS * JOBS / spent_s}

    return Scenario(
        play=play,
        reference=lambda seed: _output([left_after(JOBS)] * CLIENTS),
        # The last job of one client was cut off with its turn.
        wrong=lambda seed: _output([left_after(JOBS), left_after(JOBS - 1)]),
        tolerance=0.0,
    )


def ask(client: subprocess.Popen[str], jobs: int) -> None:
    """Let a child process begin."""
    if client.stdin is not None:
        client.stdin.write(f"{jobs}\n")
        client.stdin.flush()


def answer_of(client: subprocess.Popen[str]) -> Any:
    """Return what a child process says next; raises CaseError if it has ended."""
    line = client.stdout.readline() if client.stdout else ""
    if not line:
        what = f"a client ended with {client.wait()}; its output says why"
        raise CaseError(what, where=str(CHILD))
    return json.loads(line)


def _process(lanes: int, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(streams.SOURCE), str(lanes)],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def environments_of(impl: str) -> Sequence[Mapping[str, str]]:
    """Return what each client finds in its environment."""
    if impl == "mps":
        return [{}] * CLIENTS
    if impl == "mig":
        return [{"CUDA_VISIBLE_DEVICES": name} for name in _slices()]
    # A folder without a daemon's pipe: these are to do without, whatever is running.
    nowhere = {"CUDA_MPS_PIPE_DIRECTORY": tempfile.gettempdir()}
    return [nowhere] if impl == "one_process" else [nowhere] * CLIENTS


def _slices() -> list[str]:
    """Return the names of slices, one for each client; nothing is changed."""
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    names = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            slice_ = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except pynvml.NVMLError:  # a place without a slice
            continue
        names.append(str(pynvml.nvmlDeviceGetUUID(slice_)))
    if len(names) < CLIENTS:
        raise CaseError(f"{len(names)} MIG slices, not {CLIENTS}", remedy="make more of them")
    return names[:CLIENTS]


def left_after(jobs: int) -> float:
    """Return the sum of what a client's values are after its jobs."""
    values = congruence.advance(torch.arange(VALUES, dtype=torch.int32), ROUNDS * jobs)
    return float((values.long() & congruence.MASK).sum())


def _output(sums: Sequence[float]) -> Any:
    return torch.tensor(sums, dtype=torch.float64)
