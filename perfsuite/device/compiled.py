"""What Triton and torch.compile have compiled in this process, found without importing either."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Iterable
from typing import Any

from perfsuite.device.protocol import Loaded

# What of a PTX says where its source lies, and who compiled it.
_PLACES = re.compile(
    r"^[ \t]*\.(?:loc|file|version)\b.*\n|//.*$|^\s*\.section\s+\.debug\w*\s*\{[^}]*\}"
    r"|^\$L__(?:tmp|func_begin|func_end)\d+:.*$",
    re.MULTILINE,
)


_ENTRIES = re.compile(r"^[^\n]*\.entry\s+([^\s(]+)\(.*?^\}\n?", re.MULTILINE | re.DOTALL)


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
            found += [_loaded(each)] if id(each) not in seen else []
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
    name = str(compiled.metadata.name)
    asm = compiled.asm
    written_in = str(getattr(getattr(compiled.src, "fn", None), "__module__", ""))
    return Loaded(
        name=name,
        symbol=name,
        ptx=plain_ptx(asm.get("ptx", "")),
        image=lambda: asm.get("cubin", b""),
        is_generated=written_in.startswith("torch."),
    )
