"""The codegen pack: what the compilers make of the kernels of all packs, with no GPU."""

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases(kernels: Sequence[perfsuite.Kernel]) -> Sequence[perfsuite.Case]:
    """Return the cases that compile these kernels; raises PerfError where there is none."""
    from perfsuite_codegen import amd, dsl, hlo, kernel

    if not kernels:
        raise perfsuite.PerfError(
            "no pack hands over a kernel, so there is nothing to compile",
            remedy="let their packs run too, as in --perf-packs codegen,memory, or -k codegen",
        )
    found = [kernel.case_of(kernels), amd.case_of(kernels), dsl.dsl_case(), hlo.hlo_case()]
    return [each for each in found if each]
