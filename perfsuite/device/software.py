"""Says which software a device is driven by, and what a GPU's tensor cores can do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re

import torch

PACKAGES = ("triton", "cuda-core", "cuda-bindings", "nvidia-cublas", "nvidia-cuda-nvrtc")
WGMMA_ARCH = 90


def software() -> dict[str, str]:
    """Return the versions whose change a comparison may be about."""
    found = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "kernel": re.split(r"[^\d.]", platform.release())[0],  # its build is the provider's
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def compilers() -> tuple[str, ...]:
    """Return the compilers that load here, as features: NVRTC needs no GPU."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001 - a missing library is told in many ways
        return ()
    return ("nvrtc",)


def features(arch: str) -> tuple[str, ...]:
    """Return what the tensor cores can do (CUDA C++ Programming Guide, compute capabilities)."""
    number = int(arch.removeprefix("sm_").rstrip("a"))
    return tuple(
        name
        for name, least in (("bf16", 80), ("fp8", 89), ("tma", 90), ("wgmma", 90), ("fp4", 100))
        if number >= least and not (name == "wgmma" and number != WGMMA_ARCH)
    )
