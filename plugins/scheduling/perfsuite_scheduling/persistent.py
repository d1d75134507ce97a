"""Many small steps: a kernel each, a kernel each in a graph, or one kernel that stays."""

from typing import Any

from perfsuite import KERNELS, Beats, cuda, operator
from perfsuite_scheduling import smoothing

_MANY = 128


@operator(
    smoke={"steps": _MANY},
    full={"steps": [16, 256]},
    needs=[cuda()],
    work=lambda steps, impl: smoothing.work(
        steps, kernels=steps * (impl != "persistent"), graph=impl == "graph"
    ),
    captures=lambda *, impl: impl != "relaunch",
    metrics=[KERNELS],
    cold=False,
    tags=["launch", "persistent"],
    # How soon one small kernel follows another: nothing but that is left of these.
    ceilings={
        "launch": lambda steps, impl: (steps, impl) == (_MANY, "relaunch"),
        "graph_node": lambda steps, impl: (steps, impl) == (_MANY, "graph"),
    },
    source="persistent kernels: AI Systems Performance Engineering, chapters 6 and 7; "
    "te42kyfo/gpu-benches, gpu-small-kernels",
)
def persistent(rng: Any, *, steps: int) -> Any:
    """Take ``steps`` dependent smoothing steps over 8192 fp32 values, 64 KiB of traffic each.

    ``relaunch`` starts a kernel for each step, ``graph`` the same kernels from a graph, and
    ``persistent`` is one kernel of 32 blocks that meet at a barrier after each step. All are
    issued before the GPU may begin, so that the host's pace plays no part: what is left is the end
    of one kernel and the start of the next, against a barrier. The barrier needs all 32 blocks on
    the GPU at once: even the smallest slice of a GPU with 2048 threads a multiprocessor has room.
    """
    return smoothing.inputs(rng)


persistent.reference(smoothing.reference)
persistent.wrong(smoothing.smooth_apart)


@persistent.impl
def _relaunch(ctx: Any, *, steps: int) -> Any:
    return smoothing.load_chain(ctx, steps)


persistent.impl(
    _relaunch,
    name="graph",
    beats=Beats(
        "persistent",
        1.0,
        "measured: 1.09 on an H200, 1.06 on an H100. A node costs less than this barrier",
        name="no_barrier",
    ),
)


@persistent.impl(
    beats=Beats(
        "relaunch",
        1.2,
        f"{smoothing.GPU_BENCHES}; a ratio of 1.9 to 2.4 with the host in it, which is not timed "
        "here, so 1.2 is asked for",
        name="one_kernel",
    )
)
def _persistent(ctx: Any, *, steps: int) -> Any:
    return smoothing.load_resident(ctx, steps)
