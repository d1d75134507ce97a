"""The pack acme: cases for the Acme A1, and the A1 itself. Imported to list, so it stays light."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import perfsuite

PERFSUITE_API = 2


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Claim]:
    """Return the cases and claims; neither numpy nor the simulator is imported for that."""
    from acme_perf import program, softscale

    return [softscale.softscale, *softscale.CLAIMS, program.program]


@perfsuite.hookimpl
def perf_implementations() -> Mapping[str, Sequence[perfsuite.Implementation]]:
    """Return Acme's kernels for operators of other packs, to stand beside theirs."""
    from acme_perf.softmax import softmax

    return {"compute.softmax": [perfsuite.Implementation(name="acme", function=softmax)]}


@perfsuite.hookimpl
def perf_device() -> perfsuite.Accelerator:
    """Return the A1s of this machine: as many as ACME_A1_UNITS says, since they are simulated.

    A driver's device nodes would be listed here. A simulator must be asked for by name: ``auto``
    would take it for hardware.
    """
    units = tuple(f"a1-{index}" for index in range(int(os.environ.get("ACME_A1_UNITS", "1"))))
    return perfsuite.Accelerator(
        name="acme", opens="acme_perf.device:A1", units=units, is_automatic=False
    )


@perfsuite.hookimpl
def perf_controller() -> str:
    """Return the module that listens and reports in pytest's own process."""
    return "acme_perf.controller"
