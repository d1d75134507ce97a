"""Compiles every kernel the pack hands over, with no GPU, and prints what each takes as JSON."""

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
from perfsuite_scheduling import perf_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perfsuite import Kernel

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TARGETS = ("sm_90a", "sm_100a")


def compile_cuda(kernel: Kernel, target: str) -> tuple[bytes, str]:
    macros = [tuple(option[2:].split("=")) for option in kernel.options]
    beside = str(Path(kernel.file).parent)
    chosen = ProgramOptions(
        std="c++17", arch=target, define_macro=macros or None, include_path=beside
    )
    program = Program(Path(kernel.file).read_text(encoding="utf-8"), "c++", chosen)
    made = program.compile("cubin", name_expressions=(kernel.function,))
    return bytes(made.code), ""


def compile_triton(kernel: Kernel, target: str) -> tuple[bytes, str]:
    function = getattr(importlib.import_module(kernel.module), kernel.function)
    names = function.arg_names
    source = ASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in kernel.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    options = {"num_warps": kernel.num_warps, "launch_pdl": bool(kernel.constants.get("EARLY"))}
    number = int(re.sub(r"\D", "", target))
    made = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
    return made.asm["cubin"], made.asm["ptx"]


def main() -> None:
    for kernel in perf_kernels():
        for target in TARGETS:
            build = compile_cuda if kernel.language == "cuda" else compile_triton
            cubin, ptx = build(kernel, target)
            row = {"name": kernel.name, "target": target}
            opcodes = opcodes_of(cubin, kernel.function)
            waits = ptx.count("griddepcontrol.wait"), ptx.count("griddepcontrol.launch_dependents")
            sys.stdout.write(json.dumps({**row, "opcodes": opcodes, "waits": waits}) + "\n")


def opcodes_of(cubin: bytes, function: str) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        code = run_tool("-sass", "-fun", function, file.name)
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", code)


def run_tool(*options: str) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), *options], capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
