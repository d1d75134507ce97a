"""Checks the tuned kernel in Triton's interpreter on odd sizes, and prints each error as JSON.

Started with TRITON_INTERPRET=1.
"""

from kernel_codes import report
from perfsuite_compiler.autotune import autotune

from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check

device = open_device("cpu")
for cols in (2, 17, 1000):
    workload = autotune.build(device.context(1), rows=5, cols=cols, impl="warps_4")
    report(f"{cols} columns", check(device, workload, seed=1).known_error)
