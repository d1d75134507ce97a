"""Programs of the A1: text with one instruction a line, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Bytes that the A1 moves between memory and its scratchpad per cycle, lanes of its vector unit,
# cycles that one more instruction costs, and cycles from a launch to its first instruction.
BYTES_PER_CYCLE, LANES, ISSUE, LAUNCH = 64, 32, 4, 800
# The longest transfer of its DMA engine.
BURST_BYTES = 4096
# Operands of each instruction.
ARITY = {"load": 2, "store": 2, "scale": 3, "exp": 2, "add": 3}
WORD_BYTES = 8


class AssemblyError(ValueError):
    """A line that is no instruction of the A1."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line: what to do, and with which registers, buffers or numbers."""

    name: str
    operands: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """Say whether it goes to memory."""
        return self.name in {"load", "store"}


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel of the A1."""

    name: str
    code: tuple[Instruction, ...]

    @property
    def bytes(self) -> int:
        """Its size in instruction memory."""
        return WORD_BYTES * len(self.code)

    @property
    def registers(self) -> int:
        """How many vector registers it names."""
        return len({each for line in self.code for each in line.operands if each[0] == "v"})

    def bursts(self, count: int) -> int:
        """Return the transfers of the DMA engine for ``count`` floats."""
        return sum(each.moves for each in self.code) * -(-4 * count // BURST_BYTES)

    def cycles(self, count: int) -> float:
        """Return the cycles of one launch on ``count`` floats: memory and lanes take turns."""
        moved = sum(each.moves for each in self.code) * 4 * count / BYTES_PER_CYCLE
        lanes = sum(not each.moves for each in self.code) * count / LANES
        return LAUNCH + ISSUE * len(self.code) + moved + lanes


def assemble(path: Path) -> Program:
    """Read a program; a line that is none is an ``AssemblyError`` with file and line."""
    code = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name, *operands = line.partition("#")[0].replace(",", " ").split() or [""]
        if not name:
            continue
        if ARITY.get(name) != len(operands):
            raise AssemblyError(f"{path}:{number}: no instruction of the A1: {line.strip()!r}")
        code.append(Instruction(name, tuple(operands)))
    return Program(path.stem, tuple(code))
