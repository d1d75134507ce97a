"""Compiles the Gluon kernel for sm_90 with no GPU, and prints what it takes as a JSON line.

In a process of its own: a chip that lacks an instruction aborts the compiler.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import triton
from hopper_sass import opcodes, usage
from perfsuite_hopper import gemm_gluon
from perfsuite_hopper.kernels import KERNELS, TILE_LAYOUT
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource


def main() -> None:
    kernel = next(each for each in KERNELS if each.language == "gluon")
    function = getattr(gemm_gluon, kernel.function)
    names = function.arg_names
    source = GluonASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constexprs=dict(kernel.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel.num_warps}
    )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "gluon.cubin"
        cubin.write_bytes(made.asm["cubin"])
        row = {
            "layouts": [repr(each) == TILE_LAYOUT for each in gemm_gluon.layouts()],
            "constants": [gemm_gluon.SLOTS, gemm_gluon.GROUP, gemm_gluon.WARPS],
            "shared": made.metadata.shared,
            "usage": usage(cubin),
            "opcodes": opcodes(cubin)[kernel.function],
        }
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
