"""Matrix multiplication without a pause: what the power limit leaves of the clock."""

from __future__ import annotations

from typing import Any

import perfsuite
from perfsuite import Regime, Work, Workload, cuda, package
from perfsuite_compute import gemm

_M = 8192


def _bound(m: int) -> dict[str, Any]:
    return {"dtype": "bf16", "m": m, "n": m, "k": m, "impl": "torch"}


def _work(m: int) -> Work:
    work = gemm.gemm.work
    assert work is not None  # noqa: S101 - the case beside this one states it
    return work(**_bound(m))


def _memory_bytes(m: int) -> int:
    size = gemm.gemm.memory_bytes
    assert size is not None  # noqa: S101 - the case beside this one states it
    return size(**_bound(m))


@perfsuite.case(
    axes={"m": [_M]},
    # No variant of the smoke tier: launches that do not reach the power limit show nothing.
    smoke={"m": [_M // 8]},
    only=lambda m: m == _M,
    needs=(package("torch"), cuda()),
    work=_work,
    memory_bytes=_memory_bytes,
    regime=Regime.SUSTAINED,
    tags=["tensor-cores", "power"],
    source="power-capped matrix multiplication, as in training steps; NVML's counter of energy",
)
def gemm_sustained(ctx: Any, m: int) -> Workload:
    """Multiply two bf16 matrices of m x m with cuBLAS, one launch right after the other.

    Its clock is held against that of the paced canary of the same run, its energy per launch
    against the baseline: the same cycles at more power are slower training, and no one's code.
    """
    return gemm.gemm.build(ctx, **_bound(m))  # type: ignore[return-value]  # it builds a Workload


CASES: tuple[perfsuite.Case | perfsuite.Claim, ...] = (gemm_sustained,)
