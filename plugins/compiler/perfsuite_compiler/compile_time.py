"""How long torch.compile takes for a small model, with and without a filled cache."""

import os
import time
from collections.abc import Mapping
from copy import deepcopy
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from perfsuite import Metric, Regime, Scenario, case, package
from perfsuite.gpu import Later, torch

ROWS, WIDTH, LAYERS = 64, 256, 2
# A compilation takes a second and scatters by a tenth: a play takes several.
TIMES = 3
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
    torch.manual_seed(1)
    layers = [
        layer
        for _ in range(LAYERS)
        for layer in (torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).to(ctx.device).eval()
    shared = TemporaryDirectory(prefix="perfsuite-")

    def given(seed: int) -> Any:
        generator = torch.Generator(ctx.device).manual_seed(seed)
        return torch.randn(ROWS, WIDTH, device=ctx.device, generator=generator)

    def once(x: Any) -> tuple[Any, float]:
        with TemporaryDirectory(prefix="perfsuite-") as own:
            cache = shared.name if impl == "warm" else own
            places = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
            torch.compiler.reset()
            with (
                patch.dict(os.environ, places),
                inductor.config.patch(compile_threads=1),
                torch.no_grad(),
            ):
                before = _cpu_s()
                return torch.compile(model)(x), _cpu_s() - before

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        outputs, taken_s = zip(*(once(given(seed)) for _ in range(TIMES)), strict=True)
        return outputs[-1], {"cpu_s": min(taken_s)}

    def reference(seed: int) -> Any:
        with torch.no_grad():
            return deepcopy(model).double()(given(seed).double())

    return Scenario(play=play, reference=reference, wrong=lambda seed: model(given(seed + 1)))


def _cpu_s() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
