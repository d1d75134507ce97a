"""A short kernel beside long ones: all on the same multiprocessors, or on some of its own."""

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

from perfsuite import Metric, Regime, Scenario, arch, case, cuda, feature
from perfsuite.gpu import asked, driver, sm_count, torch
from perfsuite_scheduling import congruence, streams

# A request is 16 blocks of 256 threads; long kernels have 32 waves of two full blocks an SM.
REQUESTS, REQUEST_BLOCKS, REQUEST_THREADS, REQUEST_ROUNDS = 100, 16, 256, 1024
LONG_KERNELS, LONG_WAVES, LONG_THREADS, LONG_ROUNDS = 128, 32, 1024, 1024
LONG_BLOCKS_PER_SM = 2


@case(
    smoke={"sms": 16, "impl": ["shared", "priority", "partition"]},
    full={"sms": [8, 32], "impl": "partition"},
    needs=(cuda(), arch("sm_90+"), feature("green_context").when(impl="partition")),
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
    short = streams.load_advance(ctx, REQUEST_ROUNDS, REQUEST_THREADS)
    long = streams.load_advance(ctx, LONG_ROUNDS, LONG_THREADS)
    if impl == "partition":
        urgent, beside = _partitioned(sms)
    else:
        # A lower number is a higher priority; torch clamps it to what the GPU has.
        urgent = torch.cuda.Stream(priority=-5 if impl == "priority" else 0)
        beside = torch.cuda.Stream()

    def serve(few: Any, served: Any) -> float:
        begun = time.perf_counter()
        short(REQUEST_BLOCKS, REQUEST_THREADS, few, served)
        urgent.synchronize()
        return 1e6 * (time.perf_counter() - begun)

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        few, many = inputs(seed, blocks, ctx.place)
        served, worked = torch.empty_like(few), torch.empty_like(many)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.cuda.stream(beside):
            for _ in range(LONG_KERNELS):
                long(blocks, LONG_THREADS, many, worked)
        with torch.cuda.stream(urgent):
            times_us = [serve(few, served) for _ in range(REQUESTS)]
        beside.synchronize()
        long_ms = 1e3 * (time.perf_counter() - begun)
        ranks = statistics.quantiles(times_us, n=100, method="inclusive")
        told = {"request_us_p50": ranks[49], "request_us_p99": ranks[98], "long_ms": long_ms}
        return (served, worked), told

    return Scenario(
        play=play,
        reference=lambda seed: expected(*inputs(seed, blocks, ctx.place)),
        wrong=lambda seed: without_last_wave(*inputs(seed, blocks, ctx.place)),
    )


def inputs(seed: int, blocks: int, place: str) -> tuple[Any, Any]:
    """Return the values of a request, and those of a long kernel."""
    chosen = torch.Generator(device=place).manual_seed(seed)
    few = congruence.draw(chosen, REQUEST_BLOCKS * REQUEST_THREADS)
    return few, congruence.draw(chosen, blocks * LONG_THREADS)


def expected(few: Any, many: Any) -> tuple[Any, Any]:
    """Return what both must be, by the closed form."""
    return congruence.advance(few, REQUEST_ROUNDS), congruence.advance(many, LONG_ROUNDS)


def without_last_wave(few: Any, many: Any) -> tuple[Any, Any]:
    """Lose the last wave of blocks: the grid was made for fewer multiprocessors."""
    served, worked = expected(few, many)
    kept = len(many) - len(many) // LONG_WAVES
    worked[kept:] = many[kept:]
    return served, worked


def _partitioned(sms: int) -> Iterator[Any]:
    """Return a stream on ``sms`` multiprocessors, and one on all others."""
    (device,) = asked(driver.cuDeviceGet(torch.cuda.current_device()))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    (whole,) = asked(driver.cuDeviceGetDevResource(device, kind))
    parts, _, rest = asked(driver.cuDevSmResourceSplitByCount(1, whole, 0, sms))
    for part in (parts[0], rest):
        (description,) = asked(driver.cuDevResourceGenerateDesc([part], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        (context,) = asked(driver.cuGreenCtxCreate(description, device, int(flags)))
        non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        (stream,) = asked(driver.cuGreenCtxStreamCreate(context, int(non_blocking), 0))
        yield torch.cuda.ExternalStream(int(stream))
