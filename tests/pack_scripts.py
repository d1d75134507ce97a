"""Runs the scripts of packs' tests, which compile or interpret kernels: each once in a session.

Each has a process of its own, forked from one that has imported torch: that takes seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_S = 300.0
# Where all processes of a session keep what scripts printed; the conftest beside sets it.
folder = Path()


def lines_of(script: Path, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    """Return the JSON lines that a script prints, whichever process of the session ran it."""
    name = repr((str(script), arguments, sorted(environment.items())))
    said = folder / hashlib.sha256(name.encode()).hexdigest()[:16]
    with said.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch"])
            output, errors = (said.with_suffix(f".{name}") for name in ("output", "errors"))
            given = (script, arguments, environment, output, errors)
            process = context.Process(target=_run, args=given)
            process.start()
            process.join(MOST_S)
            process.kill()
            process.join()
            assert process.exitcode == 0, f"{script}: {errors.read_text()}"
            output.rename(said)
    return [json.loads(line) for line in said.read_text("utf-8").splitlines()]


def _run(
    script: Path, arguments: tuple[str, ...], environment: Mapping[str, str], *files: Path
) -> None:
    os.environ.update(environment)
    for number, file in enumerate(files, start=1):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
