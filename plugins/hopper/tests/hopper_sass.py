"""Reads a cubin with the tools that come with Triton."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path

OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)")


def tool() -> Path | None:
    """Return cuobjdump, or nothing where Triton is not installed."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    return Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"


def _run(option: str, cubin: Path) -> str:
    command = [str(tool()), option, str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def opcodes(cubin: Path) -> dict[str, Counter[str]]:
    """Return how often each opcode, modifiers included, occurs in each kernel."""
    parts = _run("-sass", cubin).split("Function : ")[1:]
    return {part.partition("\n")[0].strip(): Counter(OPCODE.findall(part)) for part in parts}


def usage(cubin: Path) -> dict[str, int]:
    """Return the most registers, stack, local and static shared bytes of any kernel."""
    found: dict[str, int] = {}
    text = _run("--dump-resource-usage", cubin)
    for key, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text):
        found[key] = max(found.get(key, 0), int(value))
    return found


def count(counts: Counter[str], opcode: str) -> int:
    """Return how often an opcode occurs, whatever its modifiers."""
    return sum(times for name, times in counts.items() if name.split(".")[0] == opcode)
