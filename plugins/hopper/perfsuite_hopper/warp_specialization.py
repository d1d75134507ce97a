"""One wgmma kernel in three builds: every warp in step, roles, and roles that never stop."""

from functools import partial
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite_hopper import gemm


@operator(
    smoke={"size": 4096},
    nightly={"size": 8192},
    needs=[cuda(), arch("sm_90")],
    rate_dtype="bf16",
    tags=["tensor-cores", "hopper", "pipelining"],
    source="warp specialization and persistent kernels: chapter 6 of the book; NVIDIA CUTLASS, "
    "'Efficient GEMM in CUDA', warp specialization",
)
def warp_specialization(rng: Any, *, size: int) -> Any:
    """Multiply two square bf16 matrices, c = a b^T, with the same tile, ring and instructions.

    ``single_role``: the two warpgroups that multiply meet after each step of 64, and one of their
    threads starts the copy that refills the slot. ``specialized``: a third warpgroup does nothing
    but copy, with 40 registers a thread where the others have 232 (setmaxnreg); they meet through
    barriers in shared memory only. ``persistent``: one block an SM takes tile after tile, so the
    copies for the next one run during the store of this one. What is missing for more: the two
    multiplying warpgroups taking turns (ping-pong), so that one stores while the other multiplies,
    and clusters whose blocks share the copies of b. Relative L2 error 1e-2 against float64.
    """
    return gemm.make_inputs(rng, size, size, size)


warp_specialization.reference(gemm.reference)
warp_specialization.wrong(gemm.without_last_step)


warp_specialization.impl(
    partial(gemm.launch_wgmma, specialized=False, persistent=False),
    name="single_role",
    beats=Beats(
        "specialized",
        0.97,
        "measured: 0.99 to 1.01 on an H100 and an H200. Its asynchronous products hide the copies",
        name="one_role_suffices",
    ),
)
for name, persistent in {"specialized": False, "persistent": True}.items():
    launch = partial(gemm.launch_wgmma, specialized=True, persistent=persistent)
    warp_specialization.impl(launch, name=name)
