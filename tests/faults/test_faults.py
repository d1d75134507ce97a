"""Each fault that was tried once is tried for ever: the tables beside this file, row by row."""

from __future__ import annotations

import pytest
from faults import interrupts, own_names, surroundings, workloads
from faults.lab import Lab
from faults.rows import Fault

FAULTS = (*workloads.FAULTS, *own_names.FAULTS, *surroundings.FAULTS, *interrupts.FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.group}: {fault.done}")
def test_fault(fault: Fault, lab: Lab) -> None:
    """The fault ends as its row says."""
    fault.check(lab.played(fault.scene))
