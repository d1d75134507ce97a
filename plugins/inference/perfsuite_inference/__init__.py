"""The inference pack: a Llama-shaped model, its key-value caches, attention and batching."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(
        __name__,
        "prefill decode kv_cache paged_attention paged_prefill batching sampling token_mask lora "
        "speculative",
    )
