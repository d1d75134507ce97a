"""A grid-wide barrier: the end of a kernel, an atomic counter, or clusters and a counter."""

from typing import Any

from perfsuite import KERNELS, Beats, arch, cuda, operator
from perfsuite_scheduling import smoothing

FUNCTIONS = {"atomic": "steps", "cluster": "steps_cluster"}


@operator(
    # Eight blocks are one cluster, which needs no counter; the others do the same with any number.
    smoke=[{"steps": 64, "blocks": 128}, {"steps": 64, "blocks": 8, "impl": "cluster"}],
    full={"steps": [16, 63, 64, 256], "blocks": [8, 32, 128]},
    needs=[cuda()],
    work=lambda steps, blocks, impl: smoothing.work(steps, kernels=steps * (impl == "relaunch")),
    captures=lambda *, impl: impl != "relaunch",
    metrics=[KERNELS],
    cold=False,
    tags=["synchronisation", "persistent", "clusters"],
    source="grid-wide synchronisation and thread block clusters: AI Systems Performance "
    "Engineering, chapters 7 and 10; te42kyfo/gpu-benches, gpu-small-kernels",
)
def grid_sync(rng: Any, *, steps: int, blocks: int) -> Any:
    """Take ``steps`` dependent smoothing steps over 8192 fp32 values with so many ``blocks``.

    Each step needs what other blocks wrote in the last one. ``relaunch`` ends the kernel, which is
    a barrier; ``atomic`` stays, and every block adds to one counter and waits for all, which is
    what cooperative groups' ``grid.sync`` does; ``cluster`` has clusters of eight blocks meet at
    the hardware's own barrier, and one thread for each cluster at the counter. Eight blocks are one
    cluster and need no counter at all. ``persistent`` has the same chain as a graph.
    """
    return smoothing.inputs(rng)


grid_sync.reference(smoothing.reference)
grid_sync.wrong(smoothing.smooth_apart)


@grid_sync.impl
def _relaunch(ctx: Any, *, steps: int, blocks: int) -> Any:
    return smoothing.load_chain(ctx, steps, blocks=blocks)


@grid_sync.impl(
    beats=[
        Beats(
            "relaunch",
            1.2,
            f"{smoothing.GPU_BENCHES}; a ratio of 1.9 to 2.4 with the host in it, which is not "
            "timed here, so 1.2 is asked for",
            name="barrier",
        ),
        Beats(
            "cluster",
            1.2,
            "measured: 1.55 on an H200, 1.98 on an H100. Clusters pay for a single one alone",
            at={"blocks": 128},
            name="without_clusters",
        ),
    ]
)
def _atomic(ctx: Any, *, steps: int, blocks: int, impl: str) -> Any:
    return smoothing.load_resident(ctx, steps, blocks=blocks, name=FUNCTIONS[impl])


grid_sync.impl(_atomic, name="cluster", needs=[arch("sm_90+")])
