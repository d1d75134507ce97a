"""Asks a short-lived child which GPUs this node has, so that the controller touches none."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from perfsuite.errors import DeviceError
from perfsuite.model import Gpu
from perfsuite.panel.site import child_environment

LIMIT_S = 60.0
_REMEDY = "run `nvidia-smi`: if it does not answer either, the driver is at fault"


def inventory() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible; empty where there is none."""
    command = [sys.executable, "-P", "-m", "perfsuite.device.inventory"]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env=child_environment(),
        )
        return msgspec.json.decode(child.stdout, type=tuple[Gpu, ...])
    except subprocess.TimeoutExpired as error:
        what = f"listing the GPUs took longer than {LIMIT_S:g} s"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        what = f"listing the GPUs failed: {last!r}"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error
    except msgspec.MsgspecError as error:
        what = f"the list of GPUs is damaged: {child.stdout[:80]!r} ({error})"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error
