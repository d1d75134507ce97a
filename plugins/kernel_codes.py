"""What the kernels of a pack compile to, with no GPU: once in a session, in another process."""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from packaging.version import Version

import perfsuite
from perfsuite.packs.load import load_pack

PLUGINS = Path(__file__).parent


class Made(NamedTuple):
    """A kernel's code, and what a block of it takes."""

    expects: str
    code: perfsuite.MachineCode
    shared_bytes: int
    columns: int

    def count(self, *opcodes: str) -> int:
        """Return how many instructions have one of these opcodes, with any modifiers."""
        return self.code.opcodes.of(*opcodes)

    @property
    def spills(self) -> bool:
        """Whether a thread keeps anything in local memory."""
        return bool(self.code.stack_bytes or self.count("LDL", "STL"))


def kernels_of(pack: str) -> dict[str, perfsuite.Kernel]:
    """Return the kernels of a pack of this folder by their own names."""
    loaded = load_pack(pack, f"module:perfsuite_{pack}@{PLUGINS / pack}")
    return {each.name.removeprefix(f"{pack}."): each for each in loaded.pack.kernels}


@cache
def codes_of(pack: str, target: str = "sm_90a") -> dict[str, Made]:
    """Return what each kernel of a pack for a target is compiled to, as the codegen pack does."""
    from pack_scripts import lines_of

    for needed in ("torch", "triton", "cuda.core"):
        pytest.importorskip(needed)
    rows = lines_of(Path(__file__), pack, target)
    assert rows, f"no kernel of {pack} is for {target}"
    return {row["name"]: msgspec.convert(row["made"], Made) for row in rows}


def main(pack: str, target: str) -> None:
    """Print a JSON line for each kernel that this Triton can compile."""
    sys.path.append(str(PLUGINS / "codegen"))
    from perfsuite_codegen.compiling import compile_kernel

    for name, kernel in kernels_of(pack).items():
        is_met = Version(metadata.version("triton")) >= Version(kernel.triton or "0")
        if target in kernel.targets and is_met:
            made = compile_kernel(kernel, target)
            code = perfsuite.read_code(made.cubin, made.symbol)
            takes = made.shared_bytes, made.tensor_memory_columns
            row = {"name": name, "made": Made(kernel.expects.get(target, ""), code, *takes)}
            sys.stdout.write(json.dumps(msgspec.to_builtins(row)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
