"""Opens devices by name: those of the core, and those that packs bring."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

from perfsuite.device.conformance import facts_faults, shape_faults
from perfsuite.device.gang import Gang
from perfsuite.device.protocol import Device
from perfsuite.errors import DeviceError
from perfsuite.model import Accelerator, DeviceFacts

# Devices by name.
BUILT_IN = {
    "cuda": "perfsuite.device.cuda:CudaDevice",
    "cpu": "perfsuite.device.cpu:CpuDevice",
    "fake": "perfsuite.device.fake:FakeDevice",
}


def open_device(
    name: str,
    *,
    seed: int = 0,
    gang: Gang | None = None,
    accelerator: Accelerator | None = None,
) -> Device:
    """Open a device by name, the process's first GPU, for a rank of ``gang`` or alone.

    With an ``accelerator``, open its first unit; what its code raises is a ``DeviceError``.
    """
    if accelerator is not None:
        return _open_own(accelerator, seed)
    if name not in BUILT_IN:
        raise DeviceError(
            f"unknown device {name!r}", remedy=f"choose one of {', '.join(sorted(BUILT_IN))}"
        )
    module, _, attribute = BUILT_IN[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    return cast("Device", kind(seed=seed, gang=gang))


def _open_own(accelerator: Accelerator, seed: int) -> Device:
    module, _, attribute = accelerator.opens.partition(":")
    if not accelerator.units:
        raise DeviceError(
            f"this machine has no {accelerator.name}, says the pack that brings it",
            where=accelerator.opens,
            remedy="choose another device",
        )
    if accelerator.folder and accelerator.folder not in sys.path:
        sys.path.append(accelerator.folder)
    try:
        kind = getattr(importlib.import_module(module), attribute)
        device = cast("Device", kind(unit=accelerator.units[0], seed=seed))
    except (Exception, SystemExit) as error:
        raise DeviceError(
            f"opening the device {accelerator.name!r} raised {type(error).__name__}: {error}",
            where=f"{accelerator.opens}, unit {accelerator.units[:1]}",
            remedy="the pack that brings it must correct this, or its driver is missing here",
        ) from error
    _refuse(accelerator, shape_faults(device))
    return device


@contextmanager
def waking(name: str, *, gang: Gang | None = None) -> Iterator[None]:
    """Have a GPU's driver make this process's context meanwhile, which takes tenths of a second.

    What fails there fails again, with its reason, when the device is opened. A rank has joined its
    gang on a GPU of its own, which only the thread that joined knows.
    """
    with ThreadPoolExecutor(1) as pool:
        if name == "cuda" and gang is None:
            pool.submit(_wake)
        yield


def _wake() -> None:
    importlib.import_module("torch").cuda.synchronize()


def described(name: str, accelerator: Accelerator | None) -> DeviceFacts:
    """Open a device and return its facts; ``DeviceError`` for a pack's that cannot be true."""
    device = open_device(name, accelerator=accelerator)
    if accelerator is not None:
        _refuse(accelerator, facts_faults(device))
    return device.facts()


def _refuse(accelerator: Accelerator, faults: Iterable[str]) -> None:
    """Raise ``DeviceError`` for the first of the faults, if there is one."""
    for fault in faults:
        raise DeviceError(
            f"device {accelerator.name!r}: {fault}",
            where=accelerator.opens,
            remedy="inherit perfsuite.Device; perfsuite.testing.check_device names all faults",
        )
