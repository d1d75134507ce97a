"""What a process waits for at its start: all kernels of its libraries, or those it launches."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsuite import CaseError, Claim, Metric, Regime, Scenario, case, cuda
from perfsuite.gpu import torch
from perfsuite_scheduling.lazy_loading_child import SIZE

CHILD = Path(__file__).with_name("lazy_loading_child.py")
# The driver's own numbers: CUmoduleLoadingMode.
MODES = {"eager": 1, "lazy": 2}
_TOLD = ("context_ms", "map_ms", "load_ms", "first_gemm_ms")
_LIMIT_S = 50.0


@case(
    smoke={"impl": [*MODES]},
    needs=(cuda(),),
    metrics=[Metric(name, "ms") for name in _TOLD],
    regime=Regime.END_TO_END,
    cold=False,
    version=2,
    tags=["start"],
    source="CUDA C++ Programming Guide, Lazy Loading: CUDA_MODULE_LOADING",
)
def lazy_loading(ctx: Any, impl: str) -> Scenario:
    """Start a process, load cuBLAS, and run one GEMM.

    The process is a child, so that nothing of it stays in the one that measures; it calls cuBLAS
    and the driver without torch, whose import takes longer than what this is about. ``eager`` and
    ``lazy`` are values of CUDA_MODULE_LOADING: all kernels of the library are brought to the GPU
    at its start, or each when it is first launched. ``load_ms`` is the library's start,
    ``first_gemm_ms`` what lazy loading has put off. A 64 x 64 product of ones and the mode that
    the driver says it is in are checked. ``time_us`` is the whole child's.
    """
    del ctx
    library = library_of_torch()

    def play(seed: int) -> tuple[Any, Mapping[str, float]]:
        del seed
        told = child_times(library, impl)
        return output_of(told["sum"], told["mode"]), {name: told[name] for name in _TOLD}

    def wrong(seed: int) -> Any:
        """Stay in the other mode: the variable was set when the driver had started."""
        del seed
        return output_of(SIZE**3, sum(MODES.values()) - MODES[impl])

    return Scenario(
        play=play,
        reference=lambda seed: output_of(SIZE**3, MODES[impl]),
        wrong=wrong,
        tolerance=0.0,
    )


def library_of_torch() -> str:
    """Return the cuBLAS that torch has brought into this process."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith("libcublas.so"):
            return f"/{path}"
    what = f"torch {torch.version.__version__} has not loaded libcublas.so"
    raise CaseError(what, remedy="install a CUDA build of torch")


def child_times(library: str, impl: str) -> dict[str, float]:
    """Return what the child tells; raises CaseError with what it says when it fails."""
    done = subprocess.run(
        [sys.executable, str(CHILD), library],
        env={**os.environ, "CUDA_MODULE_LOADING": impl.upper()},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise CaseError(f"the child failed: {done.stderr.strip()[-500:]}", where=str(CHILD))
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def output_of(total: float, mode: float) -> Any:
    """Return what is compared: the sum of the product, and the driver's mode."""
    return torch.tensor([total, mode], dtype=torch.float64)


LAZY_START = Claim(
    name="lazy_start",
    case="lazy_loading",
    faster={"impl": "lazy"},
    than={"impl": "eager"},
    by=2.0,
    source="CUDA C++ Programming Guide, Lazy Loading: it reduces the time a program takes to "
    "load. Measured: 4.5 on an H200, 5.6 on an H100",
)
