"""One wgmma kernel in three builds: every warp in step, roles, and roles that never stop."""

from __future__ import annotations

from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package
from perfsuite_hopper import gemm

_BUILDS = {
    "single_role": {"specialized": False, "persistent": False},
    "specialized": {"specialized": True, "persistent": False},
    "persistent": {"specialized": True, "persistent": True},
}


def _work(size: int, impl: str) -> Work:
    return gemm.work(size, size, size)


def _memory_bytes(size: int, impl: str) -> int:
    return gemm.memory_bytes(size, size, size)


@perfsuite.case(
    axes={"size": [4096, 8192], "impl": list(_BUILDS)},
    smoke={"size": [4096]},
    needs=(package("torch"), cuda(), arch("sm_90")),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["tensor-cores", "hopper", "pipelining"],
    source="warp specialization and persistent kernels: chapter 6 of the book; NVIDIA CUTLASS, "
    "'Efficient GEMM in CUDA', warp specialization",
)
def warp_specialization(ctx: Any, size: int, impl: str) -> Workload:
    """Multiply two square bf16 matrices, c = a b^T, with the same tile, ring and instructions.

    ``single_role``: the two warpgroups that multiply meet after each step of 64, and one of their
    threads starts the copy that refills the slot. ``specialized``: a third warpgroup does nothing
    but copy, with 40 registers a thread where the others have 232 (setmaxnreg); they meet through
    barriers in shared memory only. ``persistent``: one block an SM takes tile after tile, so the
    copies for the next one run during the store of this one. What is missing for more: the two
    multiplying warpgroups taking turns (ping-pong), so that one stores while the other multiplies,
    and clusters whose blocks share the copies of b. Relative L2 error 1e-2 against float64.
    """
    return Workload(
        fn=gemm.launch_wgmma(ctx, **_BUILDS[impl]),
        make_inputs=gemm.make_inputs(size, size, size),
        reference=gemm.reference,
        wrong=gemm.without_last_step,
    )


CASES: tuple[perfsuite.Case, ...] = (warp_specialization,)
