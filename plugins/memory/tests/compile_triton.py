"""Compiles the pack's Triton kernels for sm_90 without a GPU and prints their opcodes as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import triton
from perfsuite_memory import coalescing_triton, stream_triton, transpose_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
POINTER = "*fp32"


def opcodes(
    kernel: triton.JITFunction, types: dict[str, str], fixed: Mapping[str, object]
) -> list[str]:
    """Return the SASS opcodes; pointers and ``n``-like arguments are multiples of 16."""
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(built.asm["cubin"])
        text = subprocess.run(
            [TOOL, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", text)


def main() -> None:
    """Print {kernel: opcodes}."""
    x_y_out = {"x_ptr": POINTER, "y_ptr": POINTER, "out_ptr": POINTER, "n": "i32"}
    partial = {"x_ptr": POINTER, "y_ptr": POINTER, "partial_ptr": POINTER, "n": "i32"}
    block = stream_triton.BLOCK
    found = {
        f"map_{op}": opcodes(
            stream_triton.map_kernel, x_y_out, {"OP": op, "SCALAR": 3.0, "BLOCK": block}
        )
        for op in ("copy", "scale", "add", "triad", "init")
    }
    for op in ("read", "dot"):
        fixed = {"OP": op, "BLOCK": block}
        found[f"reduce_{op}"] = opcodes(stream_triton.reduce_kernel, partial, fixed)
    found["finish"] = opcodes(
        stream_triton.finish_kernel,
        {"partial_ptr": POINTER, "out_ptr": POINTER, "count": "i32"},
        {"BLOCK": 1024},
    )
    fields = {"record_ptr": POINTER, "field_ptr": POINTER, "n": "i32"}
    for stride in (1, 8):
        fixed = {"STRIDE": stride, "BLOCK": coalescing_triton.BLOCK}
        found[f"take_field_{stride}"] = opcodes(coalescing_triton.take_field_kernel, fields, fixed)
    found["transpose"] = opcodes(
        transpose_triton.transpose_kernel,
        {"in_ptr": POINTER, "out_ptr": POINTER, "rows": "i32", "columns": "i32"},
        {"TILE": transpose_triton.TILE},
    )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
