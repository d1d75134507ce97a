"""The devices: one protocol, and CUDA, CPU and a scripted fake behind it."""

from perfsuite.device.gang import Gang, join, join_elastic
from perfsuite.device.protocol import Comparison, Context, Device, Group, Rng, Sample, open_device

__all__ = [
    "Comparison",
    "Context",
    "Device",
    "Gang",
    "Group",
    "Rng",
    "Sample",
    "join",
    "join_elastic",
    "open_device",
]
