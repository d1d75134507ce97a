"""The codegen pack: what the compilers make of the kernels of all packs, with no GPU."""

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases(kernels: Sequence[perfsuite.Kernel]) -> Sequence[perfsuite.Case]:
    """Return the case that compiles these kernels; raises PerfError where there is none."""
    from perfsuite_codegen.kernel import case_of

    if not kernels:
        raise perfsuite.PerfError(
            "no pack hands over a kernel, so there is nothing to compile",
            remedy="let their packs run too, as in --perf-packs codegen,memory, or -k codegen",
        )
    return [case_of(kernels)]
