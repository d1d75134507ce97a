"""Compiles the matrix kernels for sm_90 with no GPU, and prints what each takes as JSON lines."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import triton
from cuda.core import Program, ProgramOptions
from perfsuite_compute.kernels_matrices import kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perfsuite import Kernel

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_cuda(kernel: Kernel) -> tuple[bytes, int]:
    macros = [tuple(option[2:].split("=")) for option in kernel.options]
    chosen = ProgramOptions(std="c++17", arch="sm_90a", define_macro=macros)
    program = Program(Path(kernel.file).read_text(encoding="utf-8"), "c++", chosen)
    made = program.compile("cubin", name_expressions=(kernel.function,))
    return bytes(made.code), 0


def compile_triton(kernel: Kernel) -> tuple[bytes, int]:
    function = getattr(importlib.import_module(kernel.module), kernel.function)
    names = function.arg_names
    source = ASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in kernel.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return made.asm["cubin"], made.metadata.shared


def main() -> None:
    for kernel in kernels():
        cubin, shared = (compile_cuda if kernel.language == "cuda" else compile_triton)(kernel)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            usage = run_tool("--dump-resource-usage", file.name)
            sass = run_tool("-sass", file.name)
        listing = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", sass)
        uses = [at for at, opcode in enumerate(listing) if opcode.startswith("FFMA")]
        row = {
            "name": kernel.name,
            "spilled": sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage)),
            "registers": max(int(count) for count in re.findall(r"REG:(\d+)", usage)),
            "shared": shared,
            "opcodes": Counter(listing),
            # Global loads before the first product: what a thread has on its way at once.
            "loads_ahead": sum(each.startswith("LDG") for each in listing[: min(uses, default=0)]),
        }
        sys.stdout.write(json.dumps(row) + "\n")


def run_tool(*options: str) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), *options], capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
