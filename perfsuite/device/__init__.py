"""The devices: one protocol, and CUDA, CPU and a scripted fake behind it."""

from perfsuite.device.protocol import Comparison, Context, Device, Group, Rng, Sample, open_device

__all__ = ["Comparison", "Context", "Device", "Group", "Rng", "Sample", "open_device"]
