"""The hooks through which packs reach the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from perfsuite.model import Case, Claim

hookspec = pluggy.HookspecMarker("perfsuite")
hookimpl = pluggy.HookimplMarker("perfsuite")


@hookspec
def perf_cases() -> Sequence[Case | Claim]:  # type: ignore[empty-body]
    """Return the pack's cases and claims.

    Called in the catalogue child to list variants, and again in each worker to build one. Must
    not import torch or a kernel: a case's builder does that when it is called. Example::

        @perfsuite.hookimpl
        def perf_cases():
            from acme.softmax import SOFTMAX, FASTER
            return [SOFTMAX, FASTER]
    """
