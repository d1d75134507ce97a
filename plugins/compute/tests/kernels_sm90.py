"""Compiles the pack's kernels for sm_90 with no GPU, and prints what each takes as JSON lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from cuda.core import Program, ProgramOptions
from perfsuite_compute import attention_triton, fma, gemm, gemm_triton, softmax, softmax_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
FOLDER = Path(gemm.__file__).parent
COLS = (1024, 8191, 8192, 32768)
OPCODES = ("HGMMA", "UTMALDG", "LDG", "LDGSTS", "LDL", "STL")


def report(name: str, cubin: bytes, *, shared: int = 0, opcodes: bool = False) -> None:
    """Print one line; ``opcodes`` also disassembles, which takes ten times as long."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = run_tool("--dump-resource-usage", file.name)
        sass = run_tool("-sass", file.name) if opcodes else ""
    spilled = sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))
    registers = max(int(count) for count in re.findall(r"REG:(\d+)", usage))
    row = {"name": name, "shared": shared, "spilled": spilled, "registers": registers}
    counts = {op: len(re.findall(rf"\b{op}\b", sass)) for op in OPCODES}
    sys.stdout.write(json.dumps({**row, **counts}) + "\n")


def run_tool(*options: str) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), *options], capture_output=True, text=True, check=True
    ).stdout


def compile_triton(name: str, kernel: Any, types: dict[str, str], **options: Any) -> None:
    names = kernel.arg_names
    constants = {key: value for key, value in options.items() if key in names}
    source = ASTSource(
        kernel,
        {key: types.get(key, "constexpr") for key in names},
        constexprs=constants,
        # What the launcher finds out by itself: pointers and sizes are multiples of 16.
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, key in enumerate(names)
            if types.get(key, "x")[0] == "*" or types.get(key) == "i32"
        },
    )
    left = {key: value for key, value in options.items() if key not in names}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=left)
    opcodes = "tensordesc" in str(types) or name.startswith("softmax")
    report(name, made.asm["cubin"], shared=made.metadata.shared, opcodes=opcodes)


def compile_cuda(file: str, kernel: str, options: tuple[str, ...]) -> None:
    macros = [option[2:].partition("=") for option in options]
    chosen = ProgramOptions(
        std="c++17",
        arch="sm_90a",
        define_macro=[(name, value) if value else name for name, _, value in macros],
    )
    program = Program((FOLDER / file).read_text(encoding="utf-8"), "c++", chosen)
    made = program.compile("cubin", name_expressions=(kernel,))
    name = f"{file}:{kernel} {' '.join(options)}"
    report(name, bytes(made.code), opcodes="BF16" in name and "819" in name)


def compile_softmax(dtype: str, cols: int) -> None:
    types = {"x": f"*{dtype}", "y": f"*{dtype}", "rows": "i32"}
    options = {"COLS": cols, "BLOCK": triton.next_power_of_2(cols)}
    options["num_warps"] = softmax_triton.warps_for(cols)
    kernel = softmax_triton.softmax_kernel
    if softmax_triton.is_ahead(cols, {"bf16": 2, "fp32": 4}[dtype]):
        kernel, options["STAGES"] = softmax_triton.softmax_ahead_kernel, softmax_triton.STAGES
    compile_triton(f"softmax_triton {dtype} {cols}", kernel, types, **options)


def main() -> None:
    for size in (1024, 8192):
        m, n, k, stages, warps = gemm_triton.tiles_for(size, size)
        types = {"a_desc": f"tensordesc<bf16[{m},{k}]>", "b_desc": f"tensordesc<bf16[{k},{n}]>"}
        types |= {"c_desc": f"tensordesc<bf16[{m},{n // 2}]>", "m": "i32", "n": "i32", "k": "i32"}
        compile_triton(
            f"gemm_triton {size}",
            gemm_triton.gemm_kernel,
            types,
            BLOCK_M=m,
            BLOCK_N=n,
            BLOCK_K=k,
            GROUP=8,
            num_stages=stages,
            num_warps=warps,
        )
    m, n, d = attention_triton.BLOCK_M, attention_triton.BLOCK_N, 128
    types = {"q_desc": f"tensordesc<bf16[{m},{d}]>", "k_desc": f"tensordesc<bf16[{n},{d}]>"}
    types |= {"v_desc": f"tensordesc<bf16[{n},{d}]>", "out": "*bf16", "s": "i32", "scale": "fp32"}
    for causal in (False, True):
        compile_triton(
            f"attention_triton {causal}",
            attention_triton.attention_kernel,
            types,
            D=d,
            BLOCK_M=m,
            BLOCK_N=n,
            CAUSAL=causal,
            num_stages=attention_triton.STAGES,
            num_warps=attention_triton.WARPS,
        )
    for dtype in ("bf16", "fp32"):
        for cols in COLS:
            compile_softmax(dtype, cols)
            compile_cuda("softmax.cu", "softmax_rows", softmax.cuda_options(dtype, cols))
    for kernel, m, n, k in (
        ("gemm_naive", 65, 67, 33),  # no whole tiles
        ("gemm_naive", 2048, 2048, 2048),
        ("gemm_tiled", 512, 512, 512),
        ("gemm_tiled", 2048, 2048, 2048),
    ):
        compile_cuda("gemm.cu", kernel, gemm.cuda_options(kernel, m, n, k))
    compile_cuda("fma.cu", "fma_loop", fma.cuda_options(4096))


if __name__ == "__main__":
    main()
