"""Compiles the pack's kernels with no GPU, and prints what each takes as JSON lines.

Arguments: the targets. One process is enough for all: only kernels that the target can run are
compiled for it, since the compiler aborts its process on others.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from perfsuite_blackwell.kernels import kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def source_of(kernel: Any) -> Any:
    module = importlib.import_module(kernel.module)
    if kernel.language == "gluon":
        return module.aot_source(kernel)
    function = getattr(module, kernel.function)
    names = function.arg_names
    return ASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs={name: value for name, value in kernel.constants.items() if name in names},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if name in kernel.aligned
        },
    )


def compile_kernel(kernel: Any, target: str) -> dict[str, Any]:
    source = source_of(kernel)
    options = {
        name: value for name, value in kernel.constants.items() if name not in source.fn.arg_names
    }
    options |= {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    number = int(target.strip("sm_a"))
    made = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = run_tool("--dump-resource-usage", file.name)
        counts = Counter(OPCODE.findall(run_tool("-sass", file.name)))
    opcodes: Counter[str] = Counter()
    for opcode, count in counts.items():
        opcodes[opcode.partition(".")[0]] += count
    return {
        "name": kernel.name,
        "target": target,
        "expects": kernel.expects[target],
        "shared": made.metadata.shared,
        "spilled": sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage)),
        "registers": max(int(count) for count in re.findall(r"REG:(\d+)", usage)),
        "opcodes": dict(opcodes),
        "full": sorted(opcode for opcode in counts if "MMA" in opcode),
        "tensor_memory": getattr(made.metadata, "tmem_size", 0),
    }


def run_tool(*options: str) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), *options], capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    for target in sys.argv[1:]:
        for kernel in kernels():
            if target in kernel.targets:
                sys.stdout.write(json.dumps(compile_kernel(kernel, target)) + "\n")


if __name__ == "__main__":
    main()
