"""A chain of small kernels: launched one by one, or captured once and replayed."""

from typing import Any

from perfsuite import KERNELS, Claim, Regime, Workload, capture, case, cuda, graph_kernels
from perfsuite.gpu import torch
from perfsuite_scheduling import smoothing


@case(
    smoke={"n": 128, "impl": ["stream", "graph"]},
    full={"n": [1, 8, 32, 200], "impl": ["stream", "graph"]},
    needs=(cuda(),),
    work=lambda n, impl: smoothing.work(n, kernels=n, graph=impl == "graph"),
    metrics=[KERNELS],
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
    x, y = (torch.empty(smoothing.N, device=ctx.place) for _ in range(2))
    chain = smoothing.load_chain(ctx, n)
    graph: Any = None
    if impl == "graph":
        graph = capture(lambda: chain(x, y))
        graph.instantiate()

    def launch(x: Any, y: Any) -> Any:
        chain(x, y) if graph is None else graph.replay()
        return y

    return Workload(
        fn=launch,
        make_inputs=lambda rng: (x.copy_(rng.randn(smoothing.N)), y),
        reference=lambda x, y: smoothing.reference(x, y, steps=n),
        # The last kernel went to another stream while capturing: the graph ends one step early.
        wrong=lambda x, y: smoothing.smooth(x, n - 1),
        # What is replayed, not what another capture would hold.
        exact=lambda: {"kernels": graph_kernels(graph)} if graph else {},
    )


GRAPH_REPLAY = Claim(
    name="graph_replay",
    case="cuda_graph",
    faster={"impl": "graph"},
    than={"impl": "stream"},
    by=4.0,
    at={"n": (32, 128, 200)},
    source=f"{smoothing.GPU_BENCHES}; a ratio of 1.9 without Python. Measured with "
    "launches from Python: 5.4 to 14, by how fast the host runs Python that minute",
)
