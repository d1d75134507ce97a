"""The GPU in a process that is not ours: looked at for a moment, then left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfsuite.device.opening import open_device
from perfsuite.device.protocol import Device
from perfsuite.errors import DeviceError


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


def wait_for_gpu() -> None:
    """Wait for all work of this process."""
    torch.cuda.synchronize()


def _opened() -> Device | DeviceError:
    if torch.cuda.current_device() != 0:
        return DeviceError("host time: only the first GPU has stamps")
    try:
        return open_device("cuda")
    except ImportError as error:
        return DeviceError(f"host time: GPU clocks need {error.name or 'cuda-core'}")
    except DeviceError as error:
        return DeviceError(f"host time: {error.what}")
