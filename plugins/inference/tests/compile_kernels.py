"""Compiles the pack's Triton kernels with no GPU, and prints what each takes as JSON lines."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from perfsuite_inference import paged_attention
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perfsuite import Kernel

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w+)")


def compiled(kernel: Kernel, capability: int) -> Any:
    """Compile as the launcher would for these types, constants and aligned arguments."""
    function: Any = getattr(importlib.import_module(kernel.module), kernel.function)
    names = function.arg_names
    source = ASTSource(
        fn=function,
        signature={name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in kernel.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def run_tool(option: str, cubin: bytes) -> str:
    """Return what cuobjdump prints."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [str(CUOBJDUMP), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print a line for each kernel and target."""
    for kernel in paged_attention.kernels():
        for capability in map(int, sys.argv[1:]):
            made = compiled(kernel, capability)
            usage = run_tool("--dump-resource-usage", made.asm["cubin"])
            row = {
                "name": kernel.name,
                "target": capability,
                "shared": made.metadata.shared,
                "spilled": sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", usage))),
                "registers": max(map(int, re.findall(r"REG:(\d+)", usage))),
                "opcodes": sorted(set(OPCODE.findall(run_tool("-sass", made.asm["cubin"])))),
            }
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
