"""The inference pack: a Llama-shaped model, its key-value caches, attention and batching."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_inference import batching, decode, kv_cache, paged_attention, prefill

    return [
        *prefill.CASES,
        *decode.CASES,
        *kv_cache.CASES,
        *paged_attention.CASES,
        *batching.CASES,
    ]
