"""The compiler pack: what torch.compile costs and gives, and what optimizers cost."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    modules = "autotune blocks compile_time custom_ops dynamo graph_trees matmul optimizer"
    return declared_in(__name__, modules)
