"""Runs the Triton kernels in its interpreter on odd sizes, and prints each error as a JSON line.

Started with TRITON_INTERPRET=1.
"""

from typing import Any

from kernel_codes import report
from perfsuite_scheduling.kernel_fusion import kernel_fusion
from perfsuite_scheduling.launch_latency import launch_latency
from perfsuite_scheduling.pdl import pdl

from perfsuite import Operator
from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

LAUNCHES: list[tuple[Operator, dict[str, Any]]] = [
    (launch_latency, {"burst": 3, "impl": "triton"}),
    *((kernel_fusion, {"n": n, "impl": "triton"}) for n in (1, 1000, 2049)),
    *((pdl, {"steps": steps, "impl": "plain"}) for steps in (1, 3, 4)),
]

if __name__ == "__main__":
    device = open_device("cpu")
    for case, axes in LAUNCHES:
        workload = case.build(device.context(1), **axes)
        report(f"{case.name} {axes}", check(device, workload, seed=1).known_error)
