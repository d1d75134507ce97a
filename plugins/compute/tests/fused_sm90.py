"""Compiles the fused cases' kernels for sm_90 with no GPU, and prints what each takes as JSON."""

from __future__ import annotations

import importlib
import json
import sys

import triton
from perfsuite_compute import kernels_decode, kernels_fused
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

import perfsuite


def report(kernel: perfsuite.Kernel) -> None:
    function = getattr(importlib.import_module(kernel.module), kernel.function)
    names = function.arg_names
    kind = GluonASTSource if kernel.language == "gluon" else ASTSource
    source = kind(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        dict(kernel.constants),
        {(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    code = perfsuite.read_code(made.asm["cubin"], made.metadata.name)
    row = {
        "name": kernel.name,
        "shared": made.metadata.shared,
        "registers": code.registers,
        "stack": code.stack_bytes,
        "opcodes": dict(code.opcodes.counts),
    }
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for each in (*kernels_fused.kernels(), *kernels_decode.kernels()):
        if not wanted or any(each.name.startswith(word) for word in wanted):
            report(each)
