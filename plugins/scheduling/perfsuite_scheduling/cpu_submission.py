"""Many small operators: what issues them decides how busy the GPU is."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perfsuite import KERNELS, Claim, Regime, Work, Workload, case, count_kernels, cuda
from perfsuite.gpu import torch
from perfsuite_scheduling import smoothing

REQUESTS = 4
STEPS = 32
DECAY = 0.98
INCREMENT = 0.1
_VALUE_BYTES = 4


def _work(n: int, impl: str) -> Work:
    moved = REQUESTS * n * _VALUE_BYTES
    return Work(read_bytes=moved, write_bytes=moved, flops=2.0 * STEPS * REQUESTS * n)


@case(
    smoke={"n": 4096, "impl": ["one", "batched"]},
    nightly=[{"n": 4096, "impl": ["threads", "graph"]}, {"n": 2**22, "impl": ["one", "graph"]}],
    full={"n": 2**22, "impl": ["threads", "batched"]},
    needs=(cuda().when(impl=("threads", "graph")), cuda().when(n=2**22)),
    work=_work,
    metrics=[KERNELS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch", "graph", "streams"],
    source="insufficient CPU submission: AI Systems Performance Engineering, chapter 7; "
    "te42kyfo/gpu-benches, gpu-small-kernels",
)
def cpu_submission(ctx: Any, n: int, impl: str) -> Workload:
    """Serve four independent requests of 65 small operators each, on n fp32 values a request.

    ``one`` is a loop over the requests, as a server without batching has it. ``threads`` gives each
    request a thread and a stream, which Python lets issue only a little beside each other.
    ``batched`` takes the same steps on all requests at once: a quarter of the operators.
    ``graph`` replays what ``one`` issues, captured when it is built. With 4096 values the host is
    what it waits for, with 2**22 the GPU. All find their data in one and the same input tensor.
    Each step is x = 0.98 x + 0.1, in two operators; any number of steps has a closed form.
    """
    x, y = (torch.empty(REQUESTS, n, device=ctx.place) for _ in range(2))
    counted = _batched if impl == "batched" else _one_by_one  # the others issue the same
    return Workload(
        fn=_launch_of(impl, x, y),
        make_inputs=lambda rng: (x.copy_(rng.randn(REQUESTS, n)), y),
        reference=_reference,
        wrong=_without_last,
        exact=lambda: {"kernels": count_kernels(ctx, lambda: counted(x, y))},
    )


def _serve(x: Any, y: Any) -> None:
    y.copy_(x)
    for _ in range(STEPS):
        y.mul_(DECAY)
        y.add_(INCREMENT)


def _one_by_one(x: Any, y: Any) -> Any:
    for source, target in zip(x, y, strict=True):
        _serve(source, target)
    return y


def _batched(x: Any, y: Any) -> Any:
    _serve(x, y)
    return y


def _launch_of(impl: str, x: Any, y: Any) -> Any:
    if impl == "threads":
        return _threaded()
    if impl == "graph":
        return smoothing.captured(_one_by_one, x, y)
    return _batched if impl == "batched" else _one_by_one


def _threaded() -> Any:
    pool = ThreadPoolExecutor(REQUESTS)
    streams = [torch.cuda.Stream() for _ in range(REQUESTS)]

    def serve(stream: Any, begun: Any, source: Any, target: Any) -> Any:
        with torch.cuda.stream(stream):
            stream.wait_event(begun)
            _serve(source, target)
            return stream.record_event()

    def launch(x: Any, y: Any) -> Any:
        here = torch.cuda.current_stream()
        begun = here.record_event()
        for ended in pool.map(serve, streams, [begun] * REQUESTS, x, y):
            here.wait_event(ended)
        return y

    return launch


def _reference(x: Any, y: Any) -> Any:
    """Use that k steps give d**k x + (1 - d**k) c / (1 - d), in float64."""
    left = DECAY**STEPS
    return left * x.double() + (1 - left) * INCREMENT / (1 - DECAY)


def _without_last(x: Any, y: Any) -> Any:
    """Lose the last request's last step: its stream was joined before the thread was done."""
    _one_by_one(x, y)
    y[-1].sub_(INCREMENT).div_(DECAY)
    return y


GRAPH_SUBMISSION = Claim(
    name="graph_submission",
    case="cpu_submission",
    faster={"impl": "graph"},
    than={"impl": "one"},
    by=5.0,
    at={"n": (4096,)},
    source=f"{smoothing.GPU_BENCHES}; a ratio of 1.9 for launches that no framework is part "
    "of. Measured with torch's operators: 9.1 on an H200, 9.5 on an H100",
)
ONE_THREAD_SUBMITS_FASTER = Claim(
    name="one_thread_submits_faster",
    case="cpu_submission",
    faster={"impl": "one"},
    than={"impl": "threads"},
    by=1.5,
    at={"n": (4096,)},
    source="measured: 2.0 on an H200, 2.1 on an H100. Python's threads take turns",
)
