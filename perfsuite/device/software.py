"""Says which software a device is driven by, and what a GPU's tensor cores can do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
from pathlib import Path

import torch

PACKAGES = ("triton", "cuda-core", "cuda-bindings", "nvidia-cublas", "nvidia-cuda-nvrtc")
WGMMA_ARCH = 90
# CUDA 12.4 has contexts with a part of the multiprocessors; this is its first driver.
GREEN_DRIVER = 550


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
    """Return the compilers that are here, as features: none needs a GPU."""
    nvcc = ("nvcc",) if shutil.which("nvcc") else ()
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001 - a missing library is told in many ways
        return nvcc
    return ("nvrtc", *nvcc)


def features(arch: str) -> tuple[str, ...]:
    """Return what the tensor cores can do (CUDA C++ Programming Guide, compute capabilities)."""
    number = int(arch.removeprefix("sm_").rstrip("a"))
    return tuple(
        name
        for name, least in (("bf16", 80), ("fp8", 89), ("tma", 90), ("wgmma", 90), ("fp4", 100))
        if number >= least and not (name == "wgmma" and number != WGMMA_ARCH)
    )


def sharing(driver: str, mig: str) -> tuple[str, ...]:
    """Return the ways to share this GPU that are there as it stands: none is set up here."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - MPS's own default
    major = driver.partition(".")[0]
    ways = {
        "green_context": major.isdigit() and int(major) >= GREEN_DRIVER,
        "mps": (pipes / "control").exists(),
        "mig": mig not in {"", "off"},
    }
    return tuple(name for name, is_there in ways.items() if is_there)
