"""One kernel in a DSL of Python, compiled for one target and read as packs' kernels are."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from perfsuite import Case, Inspection, Regime, case, package, read_code
from perfsuite_codegen.kernel import METRICS, check_promise, metrics_of

# What each is imported as.
PACKAGES = {"cute": "cutlass", "cutile": "cuda.tile", "numba": "numba_cuda", "warp": "warp"}
# What cannot be known from an image alone.
UNKNOWN = {"tensor_memory_columns", "blocks_per_sm"}
# What a block takes of its shared memory for CUDA.
RESERVED = 1024
# The kind of a section that takes no bytes of the image.
NOBITS = 8
_WIDE = {"sm_90a": "LDG.128", "sm_100a": "LDG.128"}
_PLAIN = {"sm_90a": "LDG", "sm_100a": "LDG"}
_EXP = {"sm_90a": "MUFU.EX2", "sm_100a": "MUFU.EX2"}
# The opcode that the code must hold, by target: what the kernel was written in this DSL for.
KERNELS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("add", "cute"): _WIDE,
    ("add", "cutile"): _PLAIN,
    ("add", "numba"): _PLAIN,
    ("add", "warp"): _PLAIN,
    ("softmax", "cute"): _EXP,
    ("softmax", "cutile"): _EXP,
    ("softmax", "numba"): _EXP,
    ("softmax", "warp"): _EXP,
    ("matmul", "cute"): {"sm_90a": "HGMMA"},  # wgmma is Hopper's alone
    ("matmul", "cutile"): {"sm_90a": "HGMMA", "sm_100a": "UTCHMMA"},
    ("matmul", "warp"): {"sm_90a": "HMMA"},  # for sm_100a it compiles for two minutes
}


def dsl_case() -> Case:
    """Return the case whose variants are these kernels, each for its targets."""

    def build(ctx: Any, *, kernel: str, dsl: str, target: str) -> Inspection:
        """Compile a kernel in a DSL of Python and count what its machine code takes and does.

        No GPU and no driver is needed. ``add`` adds vectors in fp32, ``softmax`` takes rows of
        1,024 numbers in fp32, and ``matmul`` multiplies in fp16 by tiles on the tensor cores.
        ``shared_bytes`` are static ones and those that the compiler asks for at launch,
        ``binary_bytes`` all sections but those for debuggers. A kernel without the opcode that
        it was written for is wrong.
        """
        return Inspection(read=lambda: read_metrics(kernel, dsl, target))

    declare = case(
        name="dsl_kernel",
        version=2,
        smoke={"kernel": "add", "dsl": list(PACKAGES), "target": "sm_90a"},
        nightly=[
            {"kernel": kernel, "dsl": dsl, "target": list(expected)}
            for (kernel, dsl), expected in KERNELS.items()
        ],
        needs=[
            package("triton"),  # for its cuobjdump
            *(package(name).when(dsl=dsl) for dsl, name in PACKAGES.items()),
        ],
        regime=Regime.EXACT,
        target="target",
        metrics=[each for each in METRICS if each.name not in UNKNOWN],
        tags=["static", "languages"],
        source="NVIDIA, CUDA Binary Utilities, instruction set reference; documentation of CuTe "
        "DSL, cuTile, numba-cuda and Warp",
    )
    return declare(build)


def read_metrics(kernel: str, dsl: str, target: str) -> dict[str, float]:
    """Compile a kernel and return its metrics; raises ``WrongResultError`` without its opcode."""
    module = f"perfsuite_codegen.dsl_{dsl}"
    binary = import_module(module).compile_kernel(kernel, target)
    code = read_code(binary.cubin, binary.symbol)
    promised = KERNELS[kernel, dsl][target]
    check_promise(promised, code, f"{target} code of {kernel}", f"{kernel} of {module}")
    found = metrics_of(binary, code)
    sections = sections_of(binary.cubin)
    _, shared_bytes = sections.get(f".nv.shared.{binary.symbol}", (NOBITS, 0))
    found["shared_bytes"] += max(0, shared_bytes - RESERVED)
    # What is for debuggers holds paths: it is longer where a checkout's folder has a longer name.
    counted = (
        name for name, (kind, _) in sections.items() if kind != NOBITS and "debug" not in name
    )
    found["binary_bytes"] = sum(sections[name][1] for name in counted)
    return {name: value for name, value in found.items() if name not in UNKNOWN}


def sections_of(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Return kind and size in bytes of the sections of an ELF image, by their names."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + size * at) for at in range(count)]
    text, found = cubin[sections[names][4] :], dict[str, tuple[int, int]]()
    for name, kind, _, _, _, length in sections:
        found[text[name : text.index(b"\0", name)].decode()] = kind, length
    return found
