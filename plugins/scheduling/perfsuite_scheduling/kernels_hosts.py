"""Kernels of the cases in which the host, the driver or the device itself decides what runs."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_scheduling import dynamic_parallelism, megakernel


def _cuda(file: Path, function: str, options: tuple[str, ...]) -> Kernel:
    name = f"{file.stem}.{function}"
    return Kernel(name=name, language="cuda", function=function, file=str(file), options=options)


# The multiprocessors of an H200.
BLOCKS = 132
# What launches kernels itself is linked by nvcc, and so not among them.
KERNELS: tuple[Kernel, ...] = (
    *(
        _cuda(dynamic_parallelism.SOURCE, name, dynamic_parallelism.OPTIONS)
        for name in ("measure", "child")
    ),
    _cuda(megakernel.SOURCE, "decode_layer", megakernel.options(BLOCKS, 1024)),
)
