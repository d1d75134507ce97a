"""The hooks through which packs reach the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from perfsuite.model import Case, Claim, Kernel

hookspec = pluggy.HookspecMarker("perfsuite")
hookimpl = pluggy.HookimplMarker("perfsuite")


@hookspec
def perf_cases(kernels: Sequence[Kernel]) -> Sequence[Case | Claim]:  # type: ignore[empty-body]
    """Return the pack's cases and claims.

    ``kernels`` are those that all packs hand over, each named ``pack.kernel``; most packs leave
    the argument out.

    Called in the catalogue child to list variants, and again in each worker to build one. Must
    not import torch or a kernel: a case's builder does that when it is called. Example::

        @perfsuite.hookimpl
        def perf_cases():
            from acme.softmax import SOFTMAX, FASTER
            return [SOFTMAX, FASTER]
    """


@hookspec
def perf_kernels() -> Sequence[Kernel]:  # type: ignore[empty-body]
    """Return the pack's kernels as plain data, to be compiled and inspected where no GPU is.

    Called in the catalogue child; must import neither torch nor a kernel. Example::

        @perfsuite.hookimpl
        def perf_kernels():
            file = str(Path(__file__).with_name("softmax.cu"))
            softmax = perfsuite.Kernel(name="softmax", language="cuda", function="f", file=file)
            return [softmax]
    """
