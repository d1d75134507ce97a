"""A chain of small kernels: launched one by one, or captured once and replayed."""

from __future__ import annotations

from typing import Any

import perfsuite
from perfsuite import Claim, Regime, Work, Workload, cuda
from perfsuite.gpu import torch
from perfsuite_scheduling import smoothing

_VALUE_BYTES = 4


def _work(n: int, impl: str) -> Work:
    moved = n * smoothing.N * _VALUE_BYTES
    start = "graph_node" if impl == "graph" else "launch"
    return Work(read_bytes=moved, write_bytes=moved, kernels=n, start=start)


@perfsuite.case(
    smoke={"n": 128, "impl": ["stream", "graph"]},
    full={"n": [1, 8, 32, 200], "impl": ["stream", "graph"]},
    needs=(cuda(),),
    work=_work,
    metrics=[perfsuite.KERNELS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch", "graph"],
    source="CUDA graphs: AI Systems Performance Engineering, chapter 7; "
    "te42kyfo/gpu-benches, gpu-small-kernels",
)
def cuda_graph(ctx: Any, n: int, impl: str) -> Workload:
    """Take ``n`` dependent smoothing steps over 8192 fp32 values, each a kernel of 64 KiB traffic.

    ``stream`` launches them one after another from Python, ``graph`` captures the same chain when
    it is built and replays it. A graph reads and writes fixed addresses: both get their data in one
    and the same input tensor and leave the result in one and the same output tensor.
    """
    x, y, scratch = (torch.empty(smoothing.N, device=ctx.place) for _ in range(3))
    chain = smoothing.load_chain(ctx, n)
    graph: Any = None
    if impl == "graph":
        graph = perfsuite.capture(lambda: chain(x, y, scratch))
        graph.instantiate()

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        return x.copy_(rng.randn(smoothing.N)), y, scratch

    def stream(x: Any, y: Any, scratch: Any) -> Any:
        chain(x, y, scratch)
        return y

    def replay(x: Any, y: Any, scratch: Any) -> Any:
        graph.replay()
        return y

    def exact() -> dict[str, float]:
        if graph is not None:  # what is replayed, not what another capture would hold
            return {"kernels": perfsuite.graph_kernels(graph)}
        return {"kernels": perfsuite.count_kernels(ctx, lambda: chain(x, y, scratch))}

    return Workload(
        fn=stream if graph is None else replay,
        make_inputs=make_inputs,
        reference=lambda x, y, scratch: smoothing.reference(x, n),
        # The last kernel went to another stream while capturing: the graph ends one step early.
        wrong=lambda x, y, scratch: smoothing.smooth(x, n - 1),
        captures=False,
        rotates=False,
        exact=exact,
    )


CASES: tuple[perfsuite.Case | Claim, ...] = (
    cuda_graph,
    Claim(
        name="graph_replay",
        case="cuda_graph",
        faster={"impl": "graph"},
        than={"impl": "stream"},
        by=1.5,
        at={"n": (32, 128, 200)},
        needs=(cuda(),),
        source=f"{smoothing.GPU_BENCHES}; a ratio of 1.9, and 1.5 is asked for",
    ),
)
