"""The devices: one protocol, and CUDA, CPU and a scripted fake behind it."""

from perfsuite.device.compiled import forget_compiled
from perfsuite.device.conformance import sampled
from perfsuite.device.counted import (
    KERNELS,
    capture,
    count_kernels,
    count_operators,
    graph_kernels,
)
from perfsuite.device.gang import Gang, join, join_elastic
from perfsuite.device.opening import described, open_device, waking
from perfsuite.device.protocol import (
    Comparison,
    Context,
    Device,
    Group,
    Loaded,
    Rng,
    Sample,
)

__all__ = [
    "KERNELS",
    "Comparison",
    "Context",
    "Device",
    "Gang",
    "Group",
    "Loaded",
    "Rng",
    "Sample",
    "capture",
    "count_kernels",
    "count_operators",
    "described",
    "forget_compiled",
    "graph_kernels",
    "join",
    "join_elastic",
    "open_device",
    "sampled",
    "waking",
]
