"""Runs every CUDA C++ kernel of the single-GPU packs once, small and of odd size, to be watched.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=.
    compute-sanitizer --tool memcheck --report-api-errors no python tests/sanitize_kernels.py

and the same with ``--tool racecheck``. (cuda-bindings asks the driver for what newer ones have; the
errors that it gets are no kernel's.) Each is compared with its reference as in any run, and named
before it begins. Cases' names as arguments choose some of them. With ``--launch`` each is launched
once and compared with nothing: racecheck breaks off with an internal error of its own in cuBLAS's
bf16 kernels, which some cases' references or mistakes launch, and without its cache torch refuses
to allocate while a graph is captured, as ``sorted`` of ``scheduling.work_queue`` does. ``--kernel-
name kne=NAME`` of compute-sanitizer, once for each kernel, leaves torch's own out and saves most of
the time.

With ``--odd`` it runs Triton's kernels at sizes that are no multiple of a tile, where a night has
none: the packs' tests have the others in Triton's interpreter, which knows nothing of rounding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from perfsuite.devices.protocol import open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Settings
from perfsuite.packs.load import load_pack

ROOT = Path(__file__).parents[1]
ONLY_LAUNCH, ONLY_ODD = "--launch", "--odd"
# A case a line with the values of its axes: each is tried with each of the others.
SMALL, ODD = (
    (ROOT / "tests" / "data" / f"{name}.txt").read_text("utf-8")
    for name in ("kernels", "kernels_odd")
)


def chosen(names: list[str], table: str = SMALL) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield cases and axes of a table, of the named cases if any are named."""
    for line in table.strip().splitlines():
        case, *bound = line.split()
        axes = [axis.split("=") for axis in bound]
        for values in product(*(texts.split("|") for _, texts in axes)):
            if not names or case in names:
                yield (
                    case,
                    {name: _value(text) for (name, _), text in zip(axes, values, strict=True)},
                )


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.lower())
    except msgspec.DecodeError:
        return text


def main(words: list[str]) -> int:
    """Check one variant after the other; return how many failed."""
    table = ODD if ONLY_ODD in words else SMALL
    names = [word for word in words if not word.startswith("--")]
    if unknown := set(names) - {name for name, _ in chosen([], table)}:
        print(f"not in the list: {', '.join(sorted(unknown))}")  # noqa: T201 - a script
        return len(unknown)
    device = open_device("cuda")
    failed = 0
    for name, axes in chosen(names, table):
        pack, _, case = name.partition(".")
        cases = load_pack(pack, f"module:perfsuite_{pack}@{ROOT / 'plugins' / pack}").cases
        print(f"{name} {axes}: ", end="", flush=True)  # noqa: T201 - what comes after may hang
        started = time.monotonic()
        try:
            session = Session(device, cases[case], axes, Settings(check_only=True), 0)
            if ONLY_LAUNCH in words:
                session.launches(1)[0]()
                device.synchronize()
            else:
                session.prepare()
        except Exception as error:  # noqa: BLE001 - the others are to be watched as well
            failed += 1
            print(f"failed: {type(error).__name__}: {error}")  # noqa: T201 - a script
        else:
            print(f"{time.monotonic() - started:.1f} s")  # noqa: T201 - a script
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
