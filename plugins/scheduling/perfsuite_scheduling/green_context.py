"""A short kernel beside long ones: all on the same multiprocessors, or on some of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import perfsuite
from perfsuite import Metric, Regime, Scenario, arch, cuda, feature
from perfsuite.gpu import asked, driver, sm_count, torch
from perfsuite_scheduling import congruence, streams

# A request is 16 blocks of 256 threads; long kernels have 32 waves of two full blocks an SM.
REQUESTS, REQUEST_BLOCKS, REQUEST_THREADS, REQUEST_ROUNDS = 100, 16, 256, 1024
LONG_KERNELS, LONG_WAVES, LONG_THREADS, LONG_ROUNDS = 128, 32, 1024, 1024
LONG_BLOCKS_PER_SM = 2


@perfsuite.case(
    smoke={"sms": 16, "impl": ["shared", "priority", "partition"]},
    full={"sms": [8, 32], "impl": "partition"},
    needs=(
        cuda(),
        arch("sm_90+"),
        feature("green_context").when(impl="partition"),
    ),
    metrics=[
        Metric("request_us_p50", "us"),
        Metric("request_us_p99", "us"),
        Metric("long_ms", "ms"),
    ],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["streams", "sharing"],
    source="green contexts: CUDA Driver API, cuGreenCtxCreate; sharing a GPU: AI Systems "
    "Performance Engineering, chapter 2",
)
def green_context(ctx: Any, sms: int, impl: str) -> Scenario:
    """Serve 100 short requests, one after the other, while 128 long kernels keep the GPU full.

    ``shared`` puts each kind on a stream of its own: a request's blocks wait until those of the
    long kernel before them have all begun. ``priority`` gives the requests' stream the highest
    priority, so that they wait for one block to end. ``partition`` gives them ``sms``
    multiprocessors which the long kernels never use, by two green contexts; the others ignore
    ``sms``. A request's time is the host's, from its launch to its end; ``long_ms`` is what the
    long kernels take meanwhile, which is the price. A round is exact arithmetic modulo 2**32.
    """
    blocks = sm_count() * LONG_BLOCKS_PER_SM * LONG_WAVES
    mix = Mix(
        _lanes_of(impl, sms),
        _kernel(ctx, REQUEST_THREADS, REQUEST_ROUNDS),
        _kernel(ctx, LONG_THREADS, LONG_ROUNDS),
        blocks,
        ctx.place,
    )
    return Scenario(play=mix.play, reference=mix.reference, wrong=mix.wrong, tolerance=0.0)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The streams of the two kinds of work, and what must live as long."""

    requests: Any
    long: Any
    held: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests and long kernels, and where they run."""

    lanes: Lanes
    request_kernel: Callable[..., None]
    long_kernel: Callable[..., None]
    blocks: int
    place: str

    def play(self, seed: int) -> tuple[Any, Mapping[str, float]]:
        """Fill the GPU with long kernels and serve the requests meanwhile."""
        few, many = self.inputs(seed)
        served, worked = torch.empty_like(few), torch.empty_like(many)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.cuda.stream(self.lanes.long):
            for _ in range(LONG_KERNELS):
                self.long_kernel(self.blocks, LONG_THREADS, many, worked)
        times_us = self._serve(few, served)
        self.lanes.long.synchronize()
        long_ms = 1e3 * (time.perf_counter() - begun)
        ranks = statistics.quantiles(times_us, n=100, method="inclusive")
        told = {"request_us_p50": ranks[49], "request_us_p99": ranks[98], "long_ms": long_ms}
        return (served, worked), told

    def inputs(self, seed: int) -> tuple[Any, Any]:
        """Return the values of a request, and those of a long kernel."""
        chosen = torch.Generator(device=self.place).manual_seed(seed)
        sizes = (REQUEST_BLOCKS * REQUEST_THREADS, self.blocks * LONG_THREADS)
        few, many = (
            torch.randint(
                -(2**31), 2**31 - 1, (n,), generator=chosen, dtype=torch.int32, device=self.place
            )
            for n in sizes
        )
        return few, many

    def reference(self, seed: int) -> tuple[Any, Any]:
        """Return what both must be, by the closed form."""
        few, many = self.inputs(seed)
        return congruence.advance(few, REQUEST_ROUNDS), congruence.advance(many, LONG_ROUNDS)

    def wrong(self, seed: int) -> tuple[Any, Any]:
        """Lose the last wave of blocks: the grid was made for fewer multiprocessors."""
        (few, many), (_, before) = self.reference(seed), self.inputs(seed)
        kept = len(many) - len(many) // LONG_WAVES
        many[kept:] = before[kept:]
        return few, many

    def _serve(self, few: Any, served: Any) -> list[float]:
        times_us = []
        with torch.cuda.stream(self.lanes.requests):
            for _ in range(REQUESTS):
                begun = time.perf_counter()
                self.request_kernel(REQUEST_BLOCKS, REQUEST_THREADS, few, served)
                self.lanes.requests.synchronize()
                times_us.append(1e6 * (time.perf_counter() - begun))
        return times_us


def _kernel(ctx: Any, threads: int, rounds: int) -> Any:
    return ctx.load_cuda(
        streams.SOURCE, "advance", options=(f"-DTHREADS={threads}", f"-DROUNDS={rounds}")
    )


def _lanes_of(impl: str, sms: int) -> Lanes:
    if impl == "partition":
        return _partitioned(sms)
    # A lower number is a higher priority; torch clamps it to what the GPU has.
    return Lanes(torch.cuda.Stream(priority=-5 if impl == "priority" else 0), torch.cuda.Stream())


def _partitioned(sms: int) -> Lanes:
    """Return a stream on ``sms`` multiprocessors, and one on all others."""
    (device,) = asked(driver.cuDeviceGet(torch.cuda.current_device()))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    (whole,) = asked(driver.cuDeviceGetDevResource(device, kind))
    parts, _, rest = asked(driver.cuDevSmResourceSplitByCount(1, whole, 0, sms))
    contexts, lanes = [], []
    for part in (parts[0], rest):
        (description,) = asked(driver.cuDevResourceGenerateDesc([part], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        (context,) = asked(driver.cuGreenCtxCreate(description, device, int(flags)))
        non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        (stream,) = asked(driver.cuGreenCtxStreamCreate(context, int(non_blocking), 0))
        contexts.append(context)
        lanes.append(torch.cuda.ExternalStream(int(stream)))
    return Lanes(lanes[0], lanes[1], tuple(contexts))


CASES: tuple[perfsuite.Case, ...] = (green_context,)
