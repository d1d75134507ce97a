"""The inference pack: a Llama-shaped model, its key-value caches, attention and batching."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_inference.batching import CASES
    from perfsuite_inference.decode import GRAPH, decode
    from perfsuite_inference.kv_cache import PAGED, kv_cache
    from perfsuite_inference.paged_attention import paged_attention
    from perfsuite_inference.prefill import FLASH, prefill

    return [prefill, FLASH, decode, GRAPH, kv_cache, PAGED, paged_attention, *CASES]
