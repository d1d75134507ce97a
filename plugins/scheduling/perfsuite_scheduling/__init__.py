"""The scheduling pack: who starts the next piece of work, and what the GPU does until then."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_scheduling import (
        async_alloc,
        cluster_scheduler,
        cpu_submission,
        cuda_graph,
        dynamic_parallelism,
        graph_conditional,
        graph_params,
        green_context,
        grid_sync,
        host_sync,
        kernel_fusion,
        launch_latency,
        lazy_loading,
        megakernel,
        mps_mig,
        pdl,
        persistent,
        stream_priority,
        streams,
        work_queue,
    )

    return [
        *launch_latency.CASES,
        *cuda_graph.CASES,
        *persistent.CASES,
        *streams.CASES,
        host_sync.host_sync,
        *kernel_fusion.CASES,
        *work_queue.CASES,
        *pdl.CASES,
        *async_alloc.CASES,
        *grid_sync.CASES,
        *graph_conditional.CASES,
        *graph_params.CASES,
        *stream_priority.CASES,
        *cpu_submission.CASES,
        *dynamic_parallelism.CASES,
        *green_context.CASES,
        *lazy_loading.CASES,
        *mps_mig.CASES,
        *cluster_scheduler.CASES,
        *megakernel.CASES,
    ]
