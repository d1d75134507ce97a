"""Reads what was compiled: the PTX that Triton left in this process, and machine code."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite.boundary import CaseError
from perfsuite.devices.protocol import Loaded

# What of a PTX says where its source lies, and who compiled it.
_PLACES = re.compile(
    r"^[ \t]*\.(?:loc|file|version)\b.*\n|//.*$|^\s*\.section\s+\.debug\w*\s*\{[^}]*\}"
    r"|^\$L__(?:tmp|func_begin|func_end)\d+:.*$",
    re.MULTILINE,
)
_ENTRIES = re.compile(r"^[^\n]*\.entry\s+([^\s(]+)\(.*?^\}\n?", re.MULTILINE | re.DOTALL)

# An instruction's address, its predicate and its opcode with modifiers: "@!P0 LDG.E.128".
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_USAGE = re.compile(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+)")
_LIMIT_S = 60.0
# Bytes that one thread moves, by modifier; without one they are 4.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "96": 12, "128": 16, "256": 32}
_WORD = 4
_ACCESSES = {"load": ("LDG", "LD", "LDGSTS"), "store": ("STG", "ST")}
_NEWER = "a newer Triton brings a newer cuobjdump"


def plain_ptx(text: str, symbol: str = "") -> str:
    """Return a PTX without line information, comments and empty lines.

    With a ``symbol``, without the other kernels of its file: they are no part of it.
    """
    if symbol:
        text = _ENTRIES.sub(lambda found: found[0] if found[1] == symbol else "", text)
    lines = (line.rstrip() for line in _PLACES.sub("", text).splitlines())
    return "\n".join(line for line in lines if line)


def triton_kernels() -> list[Any]:
    """Return what Triton has compiled, its own objects; frozen ones are the server's."""
    return _instances("triton.compiler.compiler", "CompiledKernel")


def triton_loaded(known: Iterable[Any]) -> list[Loaded]:
    """Return what Triton has compiled but for the ``known``."""
    seen = {id(each) for each in known}
    found: list[Loaded] = []
    for each in triton_kernels():
        # Another version may keep it otherwise: what explains a change must not fail a variant.
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            if id(each) not in seen:
                found.append(_loaded(each))
    return found


def forget_compiled() -> None:
    """Let the next variant compile anew, as it would in a process of its own."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    for function in _instances("triton.runtime.jit", "JITFunction"):
        with contextlib.suppress(AttributeError):  # a cache that Triton keeps elsewhere
            function.device_caches.clear()
    gc.collect()


def _instances(module: str, name: str) -> list[Any]:
    kind = getattr(sys.modules.get(module), name, None)
    return [each for each in gc.get_objects() if type(each) is kind] if kind else []


def _loaded(compiled: Any) -> Loaded:
    name, asm = str(compiled.metadata.name), compiled.asm
    written_in = str(getattr(getattr(compiled.src, "fn", None), "__module__", ""))
    return Loaded(
        name=name,
        symbol=name,
        ptx=plain_ptx(asm.get("ptx", "")),
        image=lambda: asm.get("cubin", b""),
        is_generated=written_in.startswith("torch."),
    )


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
        moved = 0
        for opcode, count in self.counts.items():
            base, *modifiers = opcode.split(".")
            widths = [_WIDTHS[each] for each in modifiers if each in _WIDTHS]
            moved += count * [*widths, _WORD][0] if base in bases else 0
        return moved

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


def _base(opcode: str) -> str:
    return opcode.partition(".")[0]


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
        command = (_tool(), "-res-usage", "-sass", "-fun", symbol, file.name)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise CaseError(f"cuobjdump cannot read the code: {said}", remedy=_NEWER)
    text = done.stdout
    usage = {name: (int(count), int(stack)) for name, count, stack in _USAGE.findall(text)}
    counts = Counter(_INSTRUCTION.findall(text))
    if symbol not in usage or not counts:
        shown = text.strip()[:200]
        raise CaseError(f"cuobjdump shows no code of {symbol!r}: {shown!r}", remedy=_NEWER)
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
        "global_loads": ops.of(*_ACCESSES["load"]),
        "global_stores": ops.of(*_ACCESSES["store"]),
        "shared_loads": ops.of("LDS", "LDSM"),
        "shared_stores": ops.of("STS", "STSM"),
        "barriers": ops.of("BAR", "SYNCS", "UTCBAR") + ops.starting("UCGABAR"),
        "atomics": ops.of("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
    }
    for way, bases in _ACCESSES.items():
        if found[f"global_{way}s"]:
            found[f"global_{way}_width"] = ops.moved(*bases) / found[f"global_{way}s"]
    return found


def _tool() -> str:
    """Return Triton's own cuobjdump, which belongs to its ptxas, else the CUDA toolkit's."""
    triton = importlib.util.find_spec("triton")
    own = Path(triton.origin or "").parent / "backends/nvidia/bin" if triton else ""
    found = shutil.which("cuobjdump", path=own) or shutil.which("cuobjdump")
    if found is None:
        raise CaseError("there is no cuobjdump", remedy="install triton, which brings it")
    return found
