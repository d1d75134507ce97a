"""How long a small model takes to compile: by torch.compile, and ahead of time by AOTInductor."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from perfsuite import Metric, Regime, Scenario, case, package
from perfsuite.gpu import Later, torch

ROWS, WIDTH, LAYERS = 64, 256, 2
# A compilation takes a second and scatters by a tenth: a play takes several.
TIMES = 3
# Calls of an exported model, of which the least time counts.
CALLS = 50
# Of 7.5 s on two CPU cores g++ takes 4.8 s for the headers of the wrapper, whatever the model. By
# default it optimizes the wrapper, 1.1 s more, and compiles the headers ahead, 10 s, for a cache
# that each play begins without.
PLAIN = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,
}
inductor = Later("torch._inductor")


@case(
    full={"impl": ["cold", "warm"]},
    needs=(package("torch"), package("triton")),
    metrics=[Metric("cpu_s", "s")],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["compile"],
    source="vllm-project/vllm#26511: a cold start of torch.compile takes 160 s in place of 118",
)
def compile_time(ctx: Any, impl: str) -> Scenario:
    """Compile a small model three times: two layers of norm, product and GELU, 64 rows of 256.

    ``cold`` begins each time with an empty cache, ``warm`` with one that holds the model already.
    ``time_us`` is all three with their first launches. ``cpu_s`` is the least processor time of
    one, of this process and of compilers that it starts. The output, of fp32, is checked against
    eager mode in float64.
    """
    model = _model(ctx.device)
    shared = TemporaryDirectory(prefix="perfsuite-")

    def once(x: Any) -> tuple[Any, float]:
        with TemporaryDirectory(prefix="perfsuite-") as own:
            cache = shared.name if impl == "warm" else own
            with _cached_in(cache):
                before = _cpu_s()
                return torch.compile(model)(x), _cpu_s() - before

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        runs = [once(_given(ctx.device, seed)) for _ in range(TIMES)]
        outputs, taken_s = zip(*runs, strict=True)
        return outputs[-1], {"cpu_s": min(taken_s)}

    return _checked(model, ctx.device, play)


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
    """Export the model of ``compile_time``, compile it ahead of time, load the package, and run it.

    The cache is empty each time. ``time_us`` is all of it. ``cpu_s`` is the processor time until
    the package is written, of this process and of compilers that it starts. ``load_ms`` is that of
    loading the package, ``call_us`` the least time of a call that is awaited. The output, of fp32,
    is checked against eager mode in float64.
    """
    del impl
    model = _model(ctx.device)
    awaited = torch.cuda.synchronize if ctx.device == "cuda" else lambda: None

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        x = _given(ctx.device, seed)
        with TemporaryDirectory(prefix="perfsuite-") as own, _cached_in(own):
            before = _cpu_s()
            exported = torch.export.export(model, (x,))
            path = inductor.aoti_compile_and_package(
                exported, package_path=f"{own}/model.pt2", inductor_configs=PLAIN
            )
            cpu_s = _cpu_s() - before
            load_s, loaded = _taken(lambda: inductor.aoti_load_package(path))
            size = Path(path).stat().st_size

            def call() -> Any:
                output = loaded(x)
                awaited()
                return output

            calls_s, outputs = zip(*(_taken(call) for _ in range(CALLS)), strict=True)
        return outputs[-1], {
            "cpu_s": cpu_s,
            "load_ms": 1e3 * load_s,
            "call_us": 1e6 * min(calls_s),
            "package_bytes": size,
        }

    return _checked(model, ctx.device, play)


def _model(device: str) -> Any:
    torch.manual_seed(1)
    layers = [
        layer
        for _ in range(LAYERS)
        for layer in (torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
    ]
    return torch.nn.Sequential(*layers).to(device).eval()


def _given(device: str, seed: int) -> Any:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(ROWS, WIDTH, device=device, generator=generator)


def _checked(model: Any, device: str, play: Any) -> Scenario:
    """Return the scenario of ``play``, whose output must be that of the model in float64."""

    def reference(seed: int) -> Any:
        with torch.no_grad():
            return deepcopy(model).double()(_given(device, seed).double())

    return Scenario(
        play=play, reference=reference, wrong=lambda seed: model(_given(device, seed + 1))
    )


@contextmanager
def _cached_in(folder: str) -> Iterator[None]:
    """Have compilers keep what they make in a folder, and forget what this process has compiled."""
    places = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
    torch.compiler.reset()
    with (
        patch.dict(os.environ, places),
        inductor.config.patch(compile_threads=1),
        torch.no_grad(),
    ):
        yield


def _taken(call: Any) -> tuple[float, Any]:
    """Return how many seconds a call takes, and what it returns."""
    before = time.perf_counter()
    returned = call()
    return time.perf_counter() - before, returned


def _cpu_s() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
