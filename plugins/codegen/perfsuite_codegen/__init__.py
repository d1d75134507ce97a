"""The codegen pack: what the compilers make of the kernels of all packs, with no GPU."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases(kernels: Sequence[perfsuite.Kernel]) -> Sequence[perfsuite.Case | perfsuite.Claim]:
    """Return the case that compiles these kernels; none where there are no kernels."""
    from perfsuite_codegen.kernel import case_of

    return [case_of(kernels)] if kernels else []
