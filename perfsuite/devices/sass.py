"""Reads what machine code takes and does from its disassembly."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfsuite.boundary import CaseError

# An instruction's address, its predicate and its opcode with modifiers: "@!P0 LDG.E.128".
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_USAGE = re.compile(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+)")
_LIMIT_S = 60.0
# Bytes that one thread moves, by modifier; without one they are 4.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "96": 12, "128": 16, "256": 32}
_WORD = 4
_LOADS, _STORES = ("LDG", "LD", "LDGSTS"), ("STG", "ST")


@dataclass(frozen=True, slots=True)
class Opcodes:
    """How often each opcode stands in a kernel's code, whatever the times it would run."""

    counts: Mapping[str, int]

    def of(self, *bases: str) -> int:
        """Return how many instructions have one of these opcodes, with any modifiers."""
        return sum(count for opcode, count in self.counts.items() if _base(opcode) in bases)

    def starting(self, *starts: str) -> int:
        """Return how many instructions have an opcode that starts so."""
        return sum(count for opcode, count in self.counts.items() if opcode.startswith(starts))

    def ending(self, end: str) -> int:
        """Return how many instructions have an opcode that ends so, before any modifier."""
        return sum(count for opcode, count in self.counts.items() if _base(opcode).endswith(end))

    def moved(self, *bases: str) -> int:
        """Return the bytes that a thread moves if it runs each of these accesses once."""
        return sum(
            count * _width(opcode)
            for opcode, count in self.counts.items()
            if _base(opcode) in bases
        )

    def has(self, opcode: str) -> bool:
        """Say whether an opcode is there: HGMMA, or with modifiers, as in LDG.128."""
        base, *modifiers = opcode.split(".")
        return any(
            _base(found) == base and set(modifiers) <= set(found.split(".")[1:])
            for found in self.counts
        )

    @property
    def total(self) -> int:
        """The number of instructions without the padding behind them."""
        return sum(self.counts.values()) - self.of("NOP")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Registers and stack of a thread, and the instructions."""

    registers: int
    stack_bytes: int
    opcodes: Opcodes


def read_code(cubin: bytes, symbol: str) -> MachineCode:
    """Take an image apart with NVIDIA's cuobjdump; raises ``CaseError`` where it cannot."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _dump("-res-usage", "-sass", "-fun", symbol, file.name)
    usage = {name: (int(count), int(stack)) for name, count, stack in _USAGE.findall(text)}
    counts = Counter(_INSTRUCTION.findall(text))
    if symbol not in usage or not counts:
        raise CaseError(
            f"cuobjdump shows no code of {symbol!r}: {text.strip()[:200]!r}",
            remedy="a newer Triton brings a newer cuobjdump",
        )
    return MachineCode(*usage[symbol], Opcodes(counts))


def facts_of(code: MachineCode) -> dict[str, float]:
    """Return what a kernel takes and does, by name; a width only where there are accesses."""
    ops = code.opcodes
    found: dict[str, float] = {
        "registers": code.registers,
        "spill_bytes": ops.moved("LDL", "STL"),
        "stack_bytes": code.stack_bytes,
        "instructions": ops.total,
        "tensor_core_ops": ops.ending("MMA"),
        "tma_ops": ops.starting("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UBLK"),
        "fma_ops": ops.of("FFMA", "FFMA2", "DFMA"),
        "special_function_ops": ops.of("MUFU"),
        "global_loads": ops.of(*_LOADS),
        "global_stores": ops.of(*_STORES),
        "shared_loads": ops.of("LDS", "LDSM"),
        "shared_stores": ops.of("STS", "STSM"),
        "barriers": ops.of("BAR", "SYNCS", "UTCBAR") + ops.starting("UCGABAR"),
        "atomics": ops.of("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
    }
    for way, bases in (("load", _LOADS), ("store", _STORES)):
        if found[f"global_{way}s"]:
            found[f"global_{way}_width"] = ops.moved(*bases) / found[f"global_{way}s"]
    return found


def _dump(*options: str) -> str:
    done = subprocess.run(
        [_tool(), *options], capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise CaseError(
            f"cuobjdump cannot read the code: {said}",
            remedy="a newer Triton brings a newer cuobjdump",
        )
    return done.stdout


def _tool() -> str:
    """Return Triton's own cuobjdump, which belongs to its ptxas, else the CUDA toolkit's."""
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin:
        path = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
        if path.is_file():
            return str(path)
    found = shutil.which("cuobjdump")
    if found is None:
        raise CaseError("there is no cuobjdump", remedy="install triton, which brings it")
    return found


def _base(opcode: str) -> str:
    return opcode.partition(".")[0]


def _width(opcode: str) -> int:
    modifiers = opcode.split(".")[1:]
    return next((_WIDTHS[each] for each in modifiers if each in _WIDTHS), _WORD)
