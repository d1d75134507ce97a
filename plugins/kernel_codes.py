"""The kernels of a pack with no GPU: what they compile to, and what they make in an interpreter."""

import json
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

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


def report(name: str, got: Any, want: Any = None) -> None:
    """Print an error, or how far a kernel's result is from what it should be, as a JSON line."""
    error = got if want is None else ((got.double() - want).norm() / want.norm()).item()
    sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")


def wrong_in(script: Path, count: int, limit: float, **other: float) -> dict[str, float]:
    """Return what a script reports of so many results in Triton's interpreter and is too large.

    ``other`` are the limits of results by how their names begin.
    """
    from pack_scripts import lines_of

    for needed in ("torch", "triton"):
        pytest.importorskip(needed)
    rows = lines_of(script, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    assert len(rows) == count
    found = {row["name"]: row["error"] for row in rows}
    limits = {name: other.get(name.partition(" ")[0], limit) for name in found}
    return {name: error for name, error in found.items() if not error < limits[name]}


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
