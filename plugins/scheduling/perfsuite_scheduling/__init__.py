"""The scheduling pack: who starts the next piece of work, and what the GPU does until then."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in

CASES = """
launch_latency cuda_graph persistent streams host_sync kernel_fusion work_queue pdl
async_alloc grid_sync graph_conditional graph_params stream_priority cpu_submission
dynamic_parallelism green_context lazy_loading mps_mig cluster_scheduler megakernel
"""


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, CASES)
