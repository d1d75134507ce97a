"""Compiles the kernels of ``movement`` for sm_90 with no GPU and prints their opcodes as JSON."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from cuda.core import Program, ProgramOptions
from perfsuite_memory.kernels_movement import kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perfsuite import Kernel

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_cuda(kernel: Kernel) -> bytes:
    """Return the machine code that NVRTC makes."""
    macros = [tuple(option[2:].split("=")) for option in kernel.options]
    chosen = ProgramOptions(
        std="c++17",
        arch="sm_90a",
        define_macro=macros or None,
        include_path=[str(Path(kernel.file).parent)],
    )
    program = Program(Path(kernel.file).read_text(encoding="utf-8"), "c++", chosen)
    return bytes(program.compile("cubin", name_expressions=(kernel.function,)).code)


def compile_triton(kernel: Kernel) -> bytes:
    """Return the machine code that Triton makes."""
    function = getattr(importlib.import_module(kernel.module), kernel.function)
    names = function.arg_names
    source = ASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in kernel.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    options = {"num_warps": kernel.num_warps}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return bytes(made.asm["cubin"])


def main() -> None:
    """Print a line a kernel."""
    for kernel in kernels():
        cubin = compile_cuda(kernel) if kernel.language == "cuda" else compile_triton(kernel)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [str(CUOBJDUMP), "-sass", "-fun", kernel.function, file.name]
            code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", code)
        sys.stdout.write(json.dumps({"name": kernel.name, "opcodes": opcodes}) + "\n")


if __name__ == "__main__":
    main()
