"""Times the tutorial as a newcomer meets it: python tests/time_tutorial.py EMPTY_FOLDER.

Every command of the page runs on this machine's CPU, from a clone of this checkout on, also what
the tests leave out. What is disturbed or unclear is measured again, as the page says. Not a test:
it needs packages from a network and a machine with nothing else to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from docs_data import ROOT, blocks_of, script_of

AGAIN = 5


def main(folder: Path) -> None:
    """Run the page's commands in the folder and tell the seconds of each."""
    shell = folder.resolve() / "work"
    shell.mkdir(parents=True)
    started = time.monotonic()
    for block in blocks_of(ROOT / "docs" / "tutorial.md"):
        for command in block.commands():
            _until_decided(command.replace("REPOSITORY", str(ROOT)), shell, block.said)
    _say(f"{time.monotonic() - started:.0f} s in all, load {os.getloadavg()[0]:.1f}")


def _until_decided(command: str, shell: Path, said: Mapping[str, str]) -> None:
    for _ in range(AGAIN):
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", script_of(command, shell)],
            cwd=shell,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        _say(f"{time.monotonic() - began:6.1f} s  exit {done.returncode}  {command}")
        _say(done.stdout.partition("= perfsuite =")[2] or done.stdout[-500:])
        if said.get("shows", "") in done.stdout and " disturbed " not in done.stdout:
            return


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
