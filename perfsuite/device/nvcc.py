"""Compiles CUDA C++ whose kernels launch kernels: nvcc links it with the device's own runtime."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from perfsuite.errors import PerfError

# The option that asks for it; NVRTC alone does not link.
RELOCATABLE = "-rdc=true"
COMPILER = "nvcc"
LIMIT_S = 100.0


def linked(path: str, arch: str, options: tuple[str, ...]) -> bytes:
    """Return the cubin of a .cu file, device runtime included; raises PerfError with nvcc's log."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "linked.cubin")
        command = [COMPILER, "-std=c++17", f"-arch={arch}", "-cubin", "-dlink", *options]
        try:
            done = subprocess.run(
                [*command, path, "-lcudadevrt", "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            remedy = f"needs=[perfsuite.feature({COMPILER!r})] skips where there is no nvcc"
            raise PerfError(f"nvcc cannot be run: {error}", where=path, remedy=remedy) from error
        if done.returncode:
            raise PerfError(
                f"does not compile for {arch}: {done.stderr.strip() or done.stdout.strip()}",
                where=path,
                remedy="fix the source; options were " + " ".join(options),
            )
        return made.read_bytes()
