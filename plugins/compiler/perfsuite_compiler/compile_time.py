"""How long a small model takes to compile: by torch.compile, and ahead of time by AOTInductor."""

import cProfile
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from perfsuite import Claim, Metric, Regime, Scenario, case, package
from perfsuite.gpu import Later, torch

ROWS, WIDTH = 64, 256
# Calls of an exported model, of which the least time counts.
CALLS = 50
# Of 7.5 s on two CPU cores g++ takes 4.8 s for the headers of the wrapper, whatever the model. By
# default it optimizes the wrapper, 1.1 s more, and compiles headers ahead, 10 s, for a cache that
# each play begins without.
PLAIN = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
inductor, codecache = Later("torch._inductor"), Later("torch._inductor.codecache")


@case(
    version=2,
    full={"impl": ["cold", "warm", "regional"]},
    needs=(package("torch"), package("triton")),
    # Two processes differ by up to 0.06 % in what Python calls.
    metrics=[Metric("cpu_s", "s"), Metric("calls", threshold=0.002)],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["compile"],
    source="vllm-project/vllm#26511: a cold start of torch.compile takes 160 s in place of 118",
)
def compile_time(ctx: Any, impl: str) -> Scenario:
    """Compile a small model: four layers of norm, product and GELU, 64 rows of 256.

    ``cold`` begins with an empty cache, ``warm`` with one that holds the model already.
    ``regional`` is cold, and compiles each layer on its own: one is compiled, and serves for all.
    On a CPU g++ made the kernels before, or it would take most of the time.
    ``time_us`` includes the first launch. ``cpu_s`` is the processor time of this process and of
    compilers that it starts. ``calls`` is how often Python calls a function meanwhile, counted in
    a compilation of its own. The output, of fp32, is checked against eager mode in float64.
    """
    model = model_of(ctx.device, layers=4)
    shared = TemporaryDirectory(prefix="perfsuite-")
    cache = shared.name if impl == "warm" else ""

    def once(seed: int, cache: str) -> Any:
        x = given(ctx.device, seed)
        with TemporaryDirectory(prefix="perfsuite-") as own, cached_in(cache or own):
            if impl == "regional":
                return torch.nn.Sequential(*map(torch.compile, model))(x)
            return torch.compile(model)(x)

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        if ctx.device != "cpu":
            inductor.utils.clear_caches()  # what this process keeps of kernels
        before = _cpu_s()
        output = once(seed, cache)
        return output, {"cpu_s": _cpu_s() - before, "calls": calls}

    once(0, codecache.cache_dir())  # g++ takes 10 s: on a CPU it compiles once on a machine
    once(0, cache)  # what is imported at first is not counted
    calls = calls_of(lambda: once(0, cache))
    return _checked(model, ctx.device, play)


REGIONAL = Claim(
    name="regional_compile",
    case="compile_time",
    faster={"impl": "regional"},
    than={"impl": "cold"},
    by=1.2,
    source="sgl-project/sglang#28193: a diffusion model compiles in 8.1 s by blocks, in 50.7 s as "
    "a whole; less is asked of four layers, since compilers of kernels have as much to do",
)


@case(
    full={"impl": ["aot_inductor"]},
    needs=(package("torch"), package("triton")),
    metrics=[
        Metric("cpu_s", "s"),
        Metric("load_ms", "ms"),
        Metric("call_us", "us"),
        # Names of files are in it.
        Metric("package_bytes", "bytes", threshold=0.01),
    ],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["compile", "export"],
    source="pytorch/pytorch#193460: compiling models by AOTInductor takes 57 % longer",
)
def export(ctx: Any, impl: str) -> Scenario:
    """Export two layers of ``compile_time``, compile ahead of time, load the package, and run it.

    The cache is empty each time. ``time_us`` is all of it. ``cpu_s`` is the processor time until
    the package is written, of this process and of compilers that it starts. ``load_ms`` is that of
    loading the package, ``call_us`` the least time of a call that is awaited. The output, of fp32,
    is checked against eager mode in float64.
    """
    del impl
    model = model_of(ctx.device, layers=2)

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        x = given(ctx.device, seed)
        with TemporaryDirectory(prefix="perfsuite-") as own, cached_in(own):
            before = _cpu_s()
            exported = torch.export.export(model, (x,))
            path = inductor.aoti_compile_and_package(
                exported, package_path=f"{own}/model.pt2", inductor_configs=PLAIN
            )
            cpu_s = _cpu_s() - before
            load_s, loaded = taken(lambda: inductor.aoti_load_package(path))
            size = Path(path).stat().st_size
            calls_s, outputs = zip(*(taken(lambda: loaded(x)) for _ in range(CALLS)), strict=True)
        return outputs[-1], {
            "cpu_s": cpu_s,
            "load_ms": 1e3 * load_s,
            "call_us": 1e6 * min(calls_s),
            "package_bytes": size,
        }

    return _checked(model, ctx.device, play)


def model_of(device: str, layers: int) -> Any:
    """Return layers of norm, product and GELU, with the same weights each time."""
    torch.manual_seed(1)
    nn = torch.nn
    each = (
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        for _ in range(layers)
    )
    return nn.Sequential(*each).to(device).eval()


def given(device: str, seed: int, rows: int = ROWS) -> Any:
    """Return the model's inputs, ``rows`` of 256 numbers."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, WIDTH, device=device, generator=generator)


def _checked(model: Any, device: str, play: Any) -> Scenario:
    """Return the scenario of ``play``, whose output must be that of the model in float64."""

    def reference(seed: int) -> Any:
        with torch.no_grad():
            return deepcopy(model).double()(given(device, seed).double())

    return Scenario(
        play=play, reference=reference, wrong=lambda seed: model(given(device, seed + 1))
    )


@contextmanager
def cached_in(folder: str) -> Iterator[None]:
    """Have compilers keep what they make in a folder, and forget what this process has compiled."""
    places = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
    torch.compiler.reset()
    with (
        patch.dict(os.environ, places),
        inductor.config.patch(compile_threads=1, cpp_cache_precompile_headers=False),
        torch.no_grad(),
    ):
        yield


def taken(call: Any) -> tuple[float, Any]:
    """Return how many seconds a call takes until the GPU is done, and what it returns."""
    before = time.perf_counter()
    returned = call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - before, returned


def calls_of(act: Callable[[], object]) -> int:
    """Return how often Python calls a function in ``act``, one of its own or one in C."""
    profile = cProfile.Profile()
    profile.runcall(act)
    return sum(each.callcount for each in profile.getstats())


def _cpu_s() -> float:
    return time.process_time() + sum(getrusage(RUSAGE_CHILDREN)[:2])
