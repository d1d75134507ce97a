"""Graphs for requests of all sizes: captured again, given other arguments, or padded to a few."""

import ctypes
from functools import partial
from typing import Any

from perfsuite import Regime, Work, Workload, capture, case, cuda
from perfsuite.gpu import load, torch
from perfsuite_scheduling import congruence, driver_graph

THREADS = 256
# Values of the requests of one launch, none a multiple of a block's.
SIZES = (1000, 60001, 3333, 12345, 777, 40007, 8191, 25001)
BUCKETS = tuple(2**power for power in range(10, 17))
TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)


def _work(nodes: int, impl: str) -> Work:
    moved = nodes * sum(SIZES) * 4
    return Work(read_bytes=moved, write_bytes=moved)


@case(
    smoke={"nodes": 16, "impl": ["stream", "recapture", "update", "bucketed"]},
    nightly={"nodes": 16, "impl": "torch_graph"},
    full={"nodes": [4, 64], "impl": ["stream", "recapture", "update", "bucketed"]},
    needs=(cuda(),),
    work=_work,
    regime=Regime.END_TO_END,
    cold=False,
    tags=["graph", "launch"],
    source="graphs for batches of many shapes: AI Systems Performance Engineering, chapters 12 "
    "and 18; CUDA C++ Programming Guide, 'Updating Instantiated Graphs'",
)
def graph_params(ctx: Any, nodes: int, impl: str) -> Workload:
    """Take eight requests of 777 to 60,001 values through ``nodes`` dependent small kernels each.

    Every request has a size and addresses of its own. ``stream`` launches the kernels one by one;
    ``recapture`` makes a graph for each request and throws it away, ``torch_graph`` the same by the
    context ``torch.cuda.graph``, which waits for the GPU and empties torch's caches; ``update``
    keeps one graph and gives each of its nodes the request's arguments and grid; ``bucketed`` has a
    graph for each power of two, copies a request in and out, and works on the padding as well. A
    kernel is a step of a sequence modulo 2**32: results are compared to the bit.
    """
    kernel = load(ctx, __file__, "advance_some", THREADS=THREADS)

    def start(x: Any, y: Any) -> None:
        kernel(blocks_of(x), THREADS, x, y, len(x))

    start(*torch.zeros(2, 1, dtype=torch.int32, device=ctx.place))  # loaded before any capture
    serves: dict[str, Any] = {"stream": _streamed, "recapture": _recaptured, "update": _updated}
    serves["torch_graph"] = _captured
    served = serves.get(impl, partial(_bucketed, ctx.place))(start, nodes)

    def run(x: Any, y: Any) -> None:
        for request, result in zip(x.split(SIZES), y.split(SIZES), strict=True):
            served(request, result)

    return Workload(
        fn=run,
        make_inputs=lambda rng: congruence.inputs(rng, sum(SIZES)),
        reference=lambda x, y: congruence.advance(x, nodes),
        wrong=lambda x, y: _with_old_length(x, y, nodes),
    )


def blocks_of(request: Any) -> int:
    """Return the blocks that a request takes."""
    return -(-len(request) // THREADS)


def _chain(start: Any, nodes: int, x: Any, y: Any) -> list[Any]:
    """Return the launches of one request: the first reads it, the others work in place."""
    return [lambda: start(x, y), *[lambda: start(y, y)] * (nodes - 1)]


def _streamed(start: Any, nodes: int) -> Any:
    def serve(x: Any, y: Any) -> None:
        for launch in _chain(start, nodes, x, y):
            launch()

    return serve


def _recaptured(start: Any, nodes: int) -> Any:
    side, issue = torch.cuda.Stream(), _streamed(start, nodes)

    def serve(x: Any, y: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            issue(x, y)
            graph.capture_end()
        graph.replay()  # what runs outlives its graph: the driver frees it on completion

    return serve


def _captured(start: Any, nodes: int) -> Any:
    side, issue = torch.cuda.Stream(), _streamed(start, nodes)

    def serve(x: Any, y: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            issue(x, y)
        graph.replay()

    return serve


def _updated(start: Any, nodes: int) -> Any:
    graph = driver_graph.Graph()

    def serve(x: Any, y: Any) -> None:
        if not graph.nodes:
            for launch in _chain(start, nodes, x, y):
                graph.add(launch)
            graph.instantiate()
        for index in range(nodes):
            source = y if index else x
            values = (source.data_ptr(), y.data_ptr(), len(x))
            graph.set_kernel(index, blocks_of(x), values, TYPES)
        graph.replay()

    return serve


def _bucketed(place: str, start: Any, nodes: int) -> Any:
    rooms = {}
    for size in BUCKETS:
        x, y = torch.zeros(2, size, dtype=torch.int32, device=place)
        graph = capture(partial(_streamed(start, nodes), x, y))
        graph.instantiate()
        rooms[size] = (graph, x, y)

    def serve(x: Any, y: Any) -> None:
        graph, inside, outside = rooms[min(size for size in BUCKETS if size >= len(x))]
        inside[: len(x)].copy_(x)
        graph.replay()
        y.copy_(outside[: len(x)])

    return serve


def _with_old_length(x: Any, y: Any, nodes: int) -> None:
    """Keep the first request's length: what is beyond it of the others stays as it was."""
    y.copy_(x)
    for request, result in zip(x.split(SIZES), y.split(SIZES), strict=True):
        result[: SIZES[0]] = congruence.advance(request[: SIZES[0]], nodes)
