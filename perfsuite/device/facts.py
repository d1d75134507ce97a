"""What a GPU says of itself, from torch and NVML."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from perfsuite.device.nvml import Nvml
from perfsuite.device.software import compilers, features, sharing, software
from perfsuite.model import DeviceFacts


def gpu_facts(properties: Any, nvml: Nvml, *, arch: str, sms: int) -> DeviceFacts:
    """Describe a GPU, its state and the software on it."""
    identity = {"vendor": "nvidia", "name": properties.name, "sm_count": str(sms)}
    seen, state = nvml.environment(), nvml.state()
    ways = sharing(seen.get("driver", ""), state.get("mig", ""))
    identity["memory_gib"] = str(round(properties.total_memory / 2**30))
    return DeviceFacts(
        device="cuda",
        name=properties.name,
        unit=hashlib.sha256(f"perfsuite:{properties.uuid}".encode()).hexdigest()[:12],
        identity={**identity, **nvml.identity()},
        state=state,
        environment={**seen, **software(), "arch": arch},
        arch=arch,
        gpus=torch.cuda.device_count(),
        memory_bytes=int(properties.total_memory),
        clocks=("time_us", "cycles"),
        features=(*features(arch), *compilers(), *ways),
    )
