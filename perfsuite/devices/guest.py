"""The GPU in a process that is not ours: looked at for a moment, or timing calls beside others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from perfsuite.boundary import DeviceError
from perfsuite.devices.protocol import Device, open_device


@contextmanager
def guest_device() -> Iterator[Device | DeviceError]:
    """Open the GPU, or say why it cannot be; the process's own stream is put back at the end."""
    torch.cuda.synchronize()  # what a call reads must be there, on whichever stream
    stream = torch.cuda.current_stream()
    try:
        device = _opened()
        yield device
        if not isinstance(device, DeviceError):
            device.synchronize()
            device.close()
    finally:
        torch.cuda.set_stream(stream)


def open_guest() -> tuple[Device, AbstractContextManager[object]]:
    """Open the GPU to stay open, and return it with the stream that its calls are timed in.

    Outside of that context the process's own stream stays the current one.
    """
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
    try:
        device = _first_gpu()
        return device, torch.cuda.stream(torch.cuda.current_stream())
    finally:
        torch.cuda.set_stream(stream)


def wait_for_gpu() -> None:
    """Wait for all work of this process."""
    torch.cuda.synchronize()


def _opened() -> Device | DeviceError:
    try:
        return _first_gpu()
    except ImportError as error:
        return DeviceError(f"host time: GPU clocks need {error.name or 'cuda-core'}")
    except DeviceError as error:
        return DeviceError(f"host time: {error.what}")


def _first_gpu() -> Device:
    if torch.cuda.is_available() and torch.cuda.current_device() != 0:
        raise DeviceError("only the first GPU has stamps", remedy="make it torch's current one")
    return open_device("cuda")
